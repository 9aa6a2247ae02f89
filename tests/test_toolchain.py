"""Toolchains: found by PATH and CXX, identified by content, remembered while nothing they are made of changes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hidet_build.errors import AnalysisError, EnvironmentFailure, ExitCode, Location, UsageError
from hidet_build.platform import parse_target
from hidet_build.toolchain.base import Toolchain
from hidet_build.toolchain.registry import Toolchains, ToolTree

SYSTEM = "/usr/bin:/bin"
PLACE = Location("k/BUILD.yaml", 3, 5, "  - rule: ir_module")


class Prober:
    """Runs the commands it is asked for, and keeps them."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
        """Run it."""
        self.commands.append(list(command))
        self.environments.append(dict(environment))
        done = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return done.returncode, done.stdout


@pytest.fixture
def prober() -> Prober:
    """A prober that has run nothing."""
    return Prober()


@pytest.fixture(scope="module")
def shared_memo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A memo folder for the tests that do not care what was asked."""
    return str(tmp_path_factory.mktemp("memo"))


def system(memo: str, **environment: str) -> Toolchains:
    """The toolchains of a machine whose PATH is the system's."""
    return Toolchains({"PATH": SYSTEM, **environment}, memo, Prober())


def wrapper(folder: Path, comment: str = "", name: str = "g++") -> Path:
    """A script that calls the system's g++."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f'#!/bin/sh\n# {comment}\nexec /usr/bin/g++ "$@"\n')
    script.chmod(0o755)
    return script


def package(folder: Path, name: str, version: str, source: str = "") -> Path:
    """An installed package."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(source)
    (folder / f"{name}-{version}.dist-info").mkdir(exist_ok=True)
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Version: {version}\n")
    return folder / name


def hidet_of(folder: Path) -> Toolchain:
    """The toolchain hidet as it is installed in `folder`."""
    return Toolchains({}, str(folder.parent / "memo"), Prober(), [str(folder)]).get("hidet")


def test_cxx_is_the_compiler_on_path(shared_memo: str) -> None:
    """The plain name g++ leads to the program, and the parts hold what it runs, reads and links."""
    found = system(shared_memo).get("cxx")
    names = {os.path.basename(path) for path, _ in found.parts}

    assert found.executable("g++") == "/usr/bin/g++"
    assert found.path == "/usr/bin:/bin"
    assert found.version.startswith("g++ 1")
    assert len(found.identity) == 64
    assert {"cc1plus", "collect2", "as", "ld", "stdc++.h", "immintrin.h", "omp.h", "libstdc++.so", "crti.o"} <= names
    assert found.looked_up == ("/usr/bin/g++",)
    assert found.is_fresh()


def test_unknown_program_of_a_toolchain(shared_memo: str) -> None:
    """A command line can start with the toolchain's own programs only."""
    found = system(shared_memo).get("binutils")

    with pytest.raises(AnalysisError) as caught:
        found.executable("nvcc")

    assert caught.value.hint == "arguments[0] can be ld or nm or objcopy or sh"


def test_second_look_up_asks_nothing(tmp_path: Path, prober: Prober) -> None:
    """What was found is remembered, and unrelated variables and later folders of PATH do not count."""
    first = Toolchains({"PATH": SYSTEM}, str(tmp_path), prober)
    before = {name: first.get(name) for name in ("cxx", "binutils", "command:cp")}
    asked = len(prober.commands)
    second = Toolchains({"PATH": f"{SYSTEM}:{tmp_path}:relative", "CPATH": "/x", "HOST": "a"}, str(tmp_path), prober)
    after = {name: second.get(name) for name in before}

    assert asked > 0
    assert len(prober.commands) == asked
    assert after == before
    assert second.found() == tuple(before.values())


def test_probes_see_no_user_environment(tmp_path: Path, prober: Prober) -> None:
    """CPATH and its like would change what the compiler says of itself."""
    Toolchains({"PATH": SYSTEM, "CPATH": "/x", "LD_LIBRARY_PATH": "/y"}, str(tmp_path), prober).get("cxx")
    names = {name for environment in prober.environments for name in environment}

    assert names == {"HOME", "LC_ALL", "PATH", "TMPDIR", "LD_TRACE_LOADED_OBJECTS"}


def test_same_compiler_by_another_path_and_name(tmp_path: Path, shared_memo: str) -> None:
    """A link to the compiler, under a name of its own, is the same toolchain."""
    expected = system(shared_memo).get("cxx").identity
    (tmp_path / "x86_64-g++").symlink_to("/usr/bin/g++")
    linked = system(shared_memo, CXX=str(tmp_path / "x86_64-g++")).get("cxx")

    assert linked.identity == expected
    assert linked.executable("g++") == str(tmp_path / "x86_64-g++")
    assert linked.executable("x86_64-g++") == str(tmp_path / "x86_64-g++")
    assert linked.path == f"{tmp_path}:/usr/bin:/bin"


def test_wrapper_in_front_is_another_toolchain(tmp_path: Path, shared_memo: str) -> None:
    """A script that goes before g++ on PATH counts with its content, and so does the compiler behind it."""
    plain = system(shared_memo).get("cxx")
    path = f"{wrapper(tmp_path / 'bin').parent}:{SYSTEM}"
    first = system(shared_memo, PATH=path).get("cxx")
    wrapper(tmp_path / "bin", "edited")
    edited = system(shared_memo, PATH=path).get("cxx")

    assert not first.is_fresh()
    assert len({plain.identity, first.identity, edited.identity}) == 3
    assert "/usr/bin/g++" in dict(first.parts)


def test_touched_part_is_looked_at_again(tmp_path: Path, prober: Prober) -> None:
    """A new time with the old content costs a probe and changes nothing else."""
    script = wrapper(tmp_path / "bin")
    environment = {"PATH": f"{script.parent}:{SYSTEM}"}
    first = Toolchains(environment, str(tmp_path), prober).get("cxx")
    asked = len(prober.commands)
    os.utime(script, (1, 1))
    second = Toolchains(environment, str(tmp_path), prober).get("cxx")

    assert len(prober.commands) == 2 * asked
    assert second.identity == first.identity


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\0" * 100])
def test_damaged_memory_costs_a_probe(tmp_path: Path, prober: Prober, damage: bytes) -> None:
    """Whatever the memory holds, the answer is the compiler's, and the memory is mended."""
    folder = tmp_path / "toolchains-1"
    expected = Toolchains({"PATH": SYSTEM}, str(tmp_path), prober).get("command:cp")
    (memory,) = folder.iterdir()
    good = memory.read_bytes()
    memory.write_bytes(good[:-1] if damage == b"" else damage)
    actual = Toolchains({"PATH": SYSTEM}, str(tmp_path), prober).get("command:cp")

    assert actual == expected
    assert memory.read_bytes() == good


def test_memory_that_cannot_be_written(tmp_path: Path) -> None:
    """A memo folder that is a file is no hindrance."""
    (tmp_path / "memo").write_text("")
    found = system(str(tmp_path / "memo")).get("command:cp")

    assert found.executable("cp") == "/usr/bin/cp"


def test_cache_launchers_are_passed_by(tmp_path: Path, shared_memo: str) -> None:
    """ccache's links stand before the compiler on many machines; the compiler behind them is meant."""
    launcher = wrapper(tmp_path, name="ccache")
    (tmp_path / "g++").symlink_to(launcher)
    on_path = system(shared_memo, PATH=f"{tmp_path}:{SYSTEM}").get("cxx")
    named = system(shared_memo, CXX=str(tmp_path / "g++")).get("cxx")

    assert on_path.executable("g++") == "/usr/bin/g++"
    assert named.executables == on_path.executables
    assert on_path.looked_up == (str(tmp_path / "g++"),)
    assert named.looked_up == ("/usr/bin/g++",)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PATH": "/nowhere"}, "there is no compiler g++: PATH has none"),
        ({"CXX": "clang++-0"}, "there is no compiler clang++-0: the environment variable CXX asks for it"),
        ({"CXX": "ccache g++"}, "the environment variable CXX is 'ccache g++': expected the name or the path of one"),
        ({"CXX": "bin/g++"}, "the environment variable CXX is 'bin/g++': expected a plain name or an absolute path"),
        ({"CXX": "true"}, "/usr/bin/true is neither g++ nor clang++"),
        ({"CXX": "false"}, "/usr/bin/false does not work: exit code 1"),
    ],
)
def test_no_usable_compiler(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    """What is wrong is said, where it is needed and what to do."""
    with pytest.raises(EnvironmentFailure) as caught:
        system(str(tmp_path), **environment).get("cxx", PLACE)

    assert caught.value.message[: len(message)] == message
    assert caught.value.location == PLACE
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_missing_compiler_says_how_to_install_one(tmp_path: Path) -> None:
    """The hint can be pasted."""
    with pytest.raises(EnvironmentFailure, match=r"apt-get install g\+\+"):
        system(str(tmp_path), PATH="/nowhere").get("cxx")


def test_binutils(tmp_path: Path, shared_memo: str) -> None:
    """nm, ld, objcopy and a shell come by PATH; what is missing is named."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nm").symlink_to("/usr/bin/nm")
    found = system(shared_memo).get("binutils")
    with pytest.raises(EnvironmentFailure) as caught:
        system(shared_memo, PATH=str(tmp_path / "bin")).get("binutils")

    assert sorted(found.executables) == ["ld", "nm", "objcopy", "sh"]
    assert found.version.startswith("GNU ld")
    assert caught.value.message == "PATH has no ld, objcopy, sh"


def test_command_is_its_content(tmp_path: Path) -> None:
    """A command is identified by the bytes of its program, wherever that lies."""
    identities = []
    for folder, text in [("a", "exit 0"), ("b", "exit 0"), ("c", "exit 1")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / folder / "tool").chmod(0o755)
        identities.append(system(str(tmp_path), PATH=str(tmp_path / folder)).get("command:tool").identity)

    assert identities[0] == identities[1]
    assert identities[0] != identities[2]


def test_interpreter_of_a_script_counts(tmp_path: Path) -> None:
    """A command that is a script is the interpreter that runs it, too."""
    identities = []
    interpreter = tmp_path / "interpreter"
    (tmp_path / "tool").write_text(f"#!{interpreter}\n")
    (tmp_path / "tool").chmod(0o755)
    for text in ("one", "two", "one"):
        interpreter.write_text(f"#!/bin/sh\n# {text}\n")
        interpreter.chmod(0o755)
        identities.append(system(str(tmp_path / "memo"), PATH=str(tmp_path)).get("command:tool").identity)

    assert identities[0] == identities[2]
    assert identities[0] != identities[1]


def test_command_python3_is_ours(tmp_path: Path) -> None:
    """python3 is the one this program runs in, whose packages the user knows, also when PATH has another."""
    folder = os.path.dirname(sys.executable)
    found = system(str(tmp_path)).get("command:python3")

    assert found.executable("python3") == f"{folder}/python3"
    assert found.looked_up == ()
    assert found.path.split(":")[0] == folder


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("command:no-such-program", EnvironmentFailure, "PATH has no program 'no-such-program'"),
        ("command:bin/tool", AnalysisError, "the command 'bin/tool' is a path: expected the plain name of a program"),
        ("command:", AnalysisError, "there is no toolchain 'command:'"),
        ("binutil", AnalysisError, "there is no toolchain 'binutil'"),
    ],
)
def test_unknown_toolchain(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    """Names that mean nothing are told apart from programs that are missing."""
    with pytest.raises(error, match=f"^k/BUILD.yaml:3:5: {message}"):
        system(str(tmp_path)).get(name, PLACE)


def test_environment_of_a_run(shared_memo: str) -> None:
    """A program sees the same few variables everywhere."""
    toolchains = system(shared_memo, CPATH="/x", NVCC_APPEND_FLAGS="-g", LD_LIBRARY_PATH="/y", LANG="de_DE")
    actual = toolchains.environment(toolchains.get("cxx"))

    assert actual == {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}


def test_hidet_is_its_content_and_its_companions(tmp_path: Path) -> None:
    """hidet's identity follows its files and the versions it runs with, not the place or what Python compiled."""
    for place in ("a", "b"):
        package(tmp_path / place, "hidet", "0.6.1", "x = 1")
        package(tmp_path / place, "torch", "2.5.0+cpu")
        package(tmp_path / place, "numpy", "2.1")
    first, elsewhere = hidet_of(tmp_path / "a"), hidet_of(tmp_path / "b")
    (tmp_path / "b/hidet/__pycache__").mkdir()
    (tmp_path / "b/hidet/__pycache__/x.cpython-311.pyc").write_bytes(b"x")
    (tmp_path / "b/hidet/y.pyc").write_bytes(b"y")
    compiled = hidet_of(tmp_path / "b")
    (tmp_path / "b/hidet/extra.h").write_text("")
    extended = hidet_of(tmp_path / "b")
    package(tmp_path / "b", "hidet", "0.6.1", "x = 2")
    edited = hidet_of(tmp_path / "b")
    shutil.rmtree(tmp_path / "a/torch-2.5.0+cpu.dist-info")
    package(tmp_path / "a", "torch", "2.6.0")
    upgraded = hidet_of(tmp_path / "a")

    assert first.version.startswith("hidet 0.6.1, torch 2.5.0+cpu, numpy 2.1, Python 3.")
    assert upgraded.version.startswith("hidet 0.6.1, torch 2.6.0, numpy 2.1, Python 3.")
    assert elsewhere.identity == first.identity == compiled.identity
    assert len({found.identity for found in (first, extended, edited, upgraded)}) == 4
    assert first.executable("python3") == sys.executable


def test_hidet_is_not_installed(tmp_path: Path) -> None:
    """A folder of that name without a package in it, as a checkout has one, is not hidet."""
    (tmp_path / "hidet").mkdir()
    toolchains = Toolchains({}, str(tmp_path / "memo"), Prober(), [str(tmp_path)])
    with pytest.raises(EnvironmentFailure) as caught:
        toolchains.get("hidet", PLACE)

    assert caught.value.message == f"hidet is not installed in {sys.executable}"
    assert caught.value.hint == "pip install 'hidet-build[hidet]'"
    assert caught.value.location == PLACE


def test_trees_of_hidet(tmp_path: Path) -> None:
    """The folders that compile actions ask for, by name; a wrong name is an error."""
    folder = package(tmp_path / "site", "hidet", "1")
    toolchains = Toolchains({}, str(tmp_path / "memo"), Prober(), [str(tmp_path / "site")])
    expected = ToolTree("hidet/lib", str(folder / "lib"), toolchains.get("hidet").identity)
    with pytest.raises(AnalysisError, match="did you mean 'hidet/include'"):
        toolchains.tree("hidet/includes")

    assert toolchains.tree("hidet/lib") == expected


@pytest.mark.hidet
def test_real_hidet_is_found_without_importing_it(tmp_path: Path) -> None:
    """Importing hidet takes seconds; finding it must not, and once it is remembered neither must metadata be read."""
    script = (
        "import sys; from hidet_build.toolchain.registry import Toolchains; t = Toolchains({}, sys.argv[1], None);"
        "f = t.get('hidet'); print(f.version.split()[0], t.tree('hidet/include').path.endswith('hidet/include'),"
        "sorted({'hidet', 'torch', 'yaml', 'networkx', 'importlib.metadata', 'subprocess'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", script, tmp_path]
    said = [subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(2)]

    assert ["hidet True ['importlib.metadata']\n", "hidet True []\n"] == said


def test_native_is_resolved_to_flags(tmp_path: Path, prober: Prober) -> None:
    """`native` becomes the flags it stands for, under a name that tells two CPUs apart, and is remembered."""
    toolchains = Toolchains({"PATH": SYSTEM}, str(tmp_path), prober)
    actual = toolchains.resolve(parse_target("cpu --arch=native"))
    asked = len(prober.commands)
    again = Toolchains({"PATH": SYSTEM}, str(tmp_path), prober).resolve(parse_target("cpu --arch=native"))
    code, output = prober(
        ["/usr/bin/g++", *actual.march, "-c", "-x", "c++", "/dev/null", "-o", "/dev/null"], {"PATH": SYSTEM}
    )

    assert actual.march[0] == f"-march={actual.cpu_arch}"
    assert "native" not in " ".join(actual.march)
    assert actual.name.startswith(f"cpu-{actual.cpu_arch}-")
    assert len(actual.name.rpartition("-")[2]) == 8
    assert (code, output) == (0, b"")
    assert again == actual
    assert len(prober.commands) == asked + 1
    assert toolchains.resolve(actual) == actual


def test_native_host_of_a_gpu(shared_memo: str) -> None:
    """A GPU's platform keeps its device and gets the host's flags."""
    actual = system(shared_memo).resolve(parse_target("cuda --arch=sm_90 --cpu_arch=native"))

    assert actual.name.startswith(f"cuda-sm_90-{actual.cpu_arch}-")
    assert actual.arch == "sm_90a"
    assert actual.cpu_flags != ()


def test_architecture_the_compiler_does_not_know(shared_memo: str) -> None:
    """The compiler's own list gives the near match."""
    with pytest.raises(UsageError) as caught:
        system(shared_memo).resolve(parse_target("cpu --arch=skylak"), PLACE)

    assert caught.value.message.endswith("knows no CPU architecture 'skylak'")
    assert caught.value.location == PLACE
    assert "did you mean 'skylake'?" in (caught.value.hint or "")


def test_architecture_without_a_compiler(tmp_path: Path) -> None:
    """A machine without g++ may restore from a cache: explicit names pass, native cannot."""
    toolchains = system(str(tmp_path), PATH="/nowhere")
    platform = parse_target("cpu --arch=x86-64-v4")
    with pytest.raises(EnvironmentFailure):
        toolchains.resolve(parse_target("cpu --arch=native"))

    assert toolchains.resolve(platform) == platform


class FakeClang:
    """A clang++ with a linker from before 2.35, as far as it is asked."""

    def __init__(self, folder: Path) -> None:
        self.driver = folder / "clang++"
        self.archive, self.library, self.header = folder / "libc.a", folder / "libm.so", folder / "a b.h"
        for file in (self.driver, self.archive, self.library, self.header):
            file.write_text(file.name)
            file.chmod(0o755)

    def __call__(self, command: Sequence[str], _: Mapping[str, str]) -> tuple[int, bytes]:
        """Answer as clang++ would."""
        if "-Wl,-t" in command:
            linked = f"-lm ({self.library})\n({self.archive})x.o\n({self.archive})y.o\n"
            return 0, f"Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n{linked}".encode()
        if "-M" in command:
            header = str(self.header).replace(" ", "\\ ")
            return 0, f"probe.o: {command[-1]} \\\n  {header}\n".encode()
        if "-march=no-such-cpu" in command:
            return 1, b"error: unknown target CPU 'no-such-cpu'\nnote: valid target CPU values are: nocona, x86-64-v3\n"
        if "-march=native" in command:
            return 0, b' "/usr/lib/llvm-14/bin/clang" "-cc1" "-target-cpu" "znver1" "-target-feature" "+avx2"\n'
        return 0, command[-1].rpartition("=")[2].encode() if len(command) == 2 else b""


def test_clang(tmp_path: Path) -> None:
    """clang++ serves in g++'s place when CXX says so; only `native` needs g++."""
    clang = FakeClang(tmp_path)
    toolchains = Toolchains({"PATH": "/nowhere", "CXX": str(clang.driver)}, str(tmp_path / "memo"), clang)
    found = toolchains.get("cxx")
    with pytest.raises(UsageError, match="write the CPU out: --arch=znver1"):
        toolchains.resolve(parse_target("cpu --arch=native"))

    assert found.version == "clang++ 14.0.6"
    assert found.executable("g++") == found.executable("clang++") == str(clang.driver)
    assert found.architectures == ("nocona", "x86-64-v3")
    assert {str(clang.header), str(clang.archive), str(clang.library)} <= set(dict(found.parts))


def test_requirement_that_is_a_module(shared_memo: str) -> None:
    """`requires: [yaml]` names the module of PyYAML; what is not there at all can be installed."""
    found = system(shared_memo)
    hints = []
    for name in ("yaml", "no-such-distribution"):
        with pytest.raises(EnvironmentFailure) as caught:
            found.get(f"hidet+{name}", PLACE)
        hints.append(caught.value.hint)

    assert hints == ["did you mean 'PyYAML'?", "pip install no-such-distribution"]
