"""The synthetic kernel workspace of the engine benchmark, for our program and for ninja; knows nothing of measuring.

Packages of 20 kernels. A kernel is a chain of three trivial actions on its own source and the package's `lib.src`; a
package joins its kernels' objects, and one target at the root joins the packages:

    pkg0000/k00000.src + pkg0000/lib.src -> k00000.ir -> k00000.cu -> k00000.o
    pkg0000/*.o -> pkg0000.so ; all *.so -> whole.bin

The first action of a kernel drops lines that begin with '#', so an edit of a comment stops there. Both tools are given
the same programs under the same /bin/sh; ninja's first action compares before it writes, or it could not stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PACKAGE_SIZE = 20


class Workspace:
    """`count` kernels below `root`; every path is from there."""

    def __init__(self, root: Path, count: int) -> None:
        self.root = root
        self.count = count

    @property
    def actions(self) -> int:
        """How many actions make everything."""
        return 3 * self.count + len(list(self.packages())) + 1

    def packages(self) -> Iterator[tuple[str, list[str]]]:
        """Each package with the names of its kernels."""
        for first in range(0, self.count, PACKAGE_SIZE):
            numbers = range(first, min(first + PACKAGE_SIZE, self.count))
            yield f"pkg{first // PACKAGE_SIZE:04}", [f"k{number:05}" for number in numbers]

    def source(self, number: int) -> Path:
        """The source of a kernel."""
        return self.root / f"pkg{number // PACKAGE_SIZE:04}" / f"k{number:05}.src"

    def library(self, number: int) -> Path:
        """The file that the kernels of a kernel's package share."""
        return self.source(number).parent / "lib.src"

    def write_sources(self) -> None:
        """The files that people would write."""
        for package, kernels in self.packages():
            folder = self.root / package
            folder.mkdir(parents=True)
            (folder / "lib.src").write_text(f"# library of {package}\nlib {package}\n" + "a line for all\n" * 8)
            for kernel in kernels:
                (folder / f"{kernel}.src").write_text(f"# {kernel}\n" + f"{kernel}: a <- b * c + d\n" * 8)

    def write_build_files(self) -> None:
        """One BUILD.yaml a package, of `command` targets."""
        names = []
        for package, kernels in self.packages():
            text = "targets:\n"
            for kernel in kernels:
                lower = f"grep -hv '^#' {kernel}.src lib.src > {kernel}.ir"
                text += _target(f"{kernel}_ir", lower, [f"{kernel}.src", "lib.src"], f"{kernel}.ir")
                codegen = f"cat {kernel}_ir/{kernel}.ir > {kernel}.cu"
                text += _target(f"{kernel}_cu", codegen, [f":{kernel}_ir"], f"{kernel}.cu")
                compile_ = f"cat {kernel}_cu/{kernel}.cu > {kernel}.o"
                text += _target(f"{kernel}_o", compile_, [f":{kernel}_cu"], f"{kernel}.o")
            objects = " ".join(f"{kernel}_o/{kernel}.o" for kernel in kernels)
            text += _target("so", f"cat {objects} > {package}.so", [f":{one}_o" for one in kernels], f"{package}.so")
            (self.root / package / "BUILD.yaml").write_text('package: {visibility: ["//visibility:public"]}\n' + text)
            names.append(package)
        libraries = " ".join(f"{name}/so/{name}.so" for name in names)
        text = _target("whole", f"cat {libraries} > whole.bin", [f"//{name}:so" for name in names], "whole.bin")
        (self.root / "BUILD.yaml").write_text(f"workspace: {{name: synthetic}}\ntargets:\n{text}")

    def write_ninja(self) -> None:
        """The same as one build.ninja."""
        lower = "grep -hv '^#' $in"
        compared = (
            f"if [ -e $out ]; then {lower} > $out.t; if cmp -s $out.t $out; then rm $out.t; else mv $out.t $out; fi"
        )
        lines = [
            f"rule lower\n  command = {compared}; else exec {lower} > $out; fi\n  restat = 1",
            "rule join\n  command = cat $in > $out",
        ]
        libraries = []
        for package, kernels in self.packages():
            for kernel in kernels:
                path = f"{package}/{kernel}"
                lines.append(f"build {path}.ir: lower {path}.src {package}/lib.src")
                lines.append(f"build {path}.cu: join {path}.ir\nbuild {path}.o: join {path}.cu")
            objects = " ".join(f"{package}/{kernel}.o" for kernel in kernels)
            lines.append(f"build {package}/{package}.so: join {objects}")
            libraries.append(f"{package}/{package}.so")
        lines.append(f"build whole.bin: join {' '.join(libraries)}\ndefault whole.bin\n")
        (self.root / "build.ninja").write_text("\n".join(lines))


def _target(name: str, shell: str, inputs: list[str], output: str) -> str:
    words = ", ".join(f'"{one}"' for one in inputs)
    return (
        f'  - rule: command\n    name: {name}\n    arguments: [sh, -c, "{shell}"]\n'
        f"    inputs: [{words}]\n    outputs: [{output}]\n"
    )
