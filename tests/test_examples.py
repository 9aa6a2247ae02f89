"""The examples as a reader meets them: built from a fresh checkout, checked against numpy, edited and built again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.space import Ended, Space

REPOSITORY = Path(__file__).resolve().parents[1]
BUILT = "hidet-bin/examples"
LIBRARIES = {
    "quickstart/saxpy": ["saxpy"],
    "quickstart/matmul": ["matmul"],
    "attention/transformer": ["attention", "causal_attention", "layer_norm", "rms_norm", "softmax"],
    "gemm_family/gemms": [
        "gemm_float32_16",
        "gemm_float32_32",
        "gemm_float32_48",
        "gemm_float32_96",
        "gemm_float64_16",
        "gemm_float64_32",
        "gemm_int32_16",
        "gemm_int32_32",
        "gemm_int32_48",
        "gemm_tuned",
        "matmul_x86_160",
        "matmul_x86_96",
    ],
    "own_rule/gelu": ["gelu"],
    "mixed/vision": ["blur", "conv2d"],
}
# Prints the functions of each library folder named on its command line.
LOAD = """
import json, sys
from hidet.runtime import load_compiled_module
print(json.dumps([sorted(load_compiled_module(folder).functions) for folder in sys.argv[1:]]))
"""

pytestmark = [pytest.mark.hidet, pytest.mark.slow]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """A copy of this workspace's examples, built."""
    space = Space(tmp_path_factory.mktemp("examples"))
    shutil.copyfile(REPOSITORY / "BUILD.yaml", space.root / "BUILD.yaml")
    shutil.copytree(
        REPOSITORY / "examples", space.root / "examples", ignore=shutil.ignore_patterns("__pycache__", "hidet-*")
    )
    space.build("//...")
    return space


def python(space: Space, *arguments: str) -> Ended:
    """Run Python to its end, somewhere outside of the workspace."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=space.base,
        env=space.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    """The file with one text in place of another, for a while."""
    before = path.read_text(encoding="utf-8")
    changed = before.replace(old, new)
    if changed == before:
        raise AssertionError(f"{path} has no {old!r}")
    path.write_text(changed, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def test_every_example_is_listed() -> None:
    """No folder of examples is left out of these tests."""
    folders = sorted(path.parent.name for path in (REPOSITORY / "examples").glob("*/BUILD.yaml"))

    assert sorted({"cuda", *(library.partition("/")[0] for library in LIBRARIES)}) == folders


def test_second_build_runs_nothing(checkout: Space) -> None:
    """A build of what was just built says that all is up to date."""
    again = checkout.build("//...")

    assert [] == again.actions
    assert again.summary.startswith("INFO: ")
    assert again.summary.endswith("targets up to date")


@pytest.mark.parametrize("example", sorted({library.partition("/")[0] for library in LIBRARIES}))
def test_check_passes(checkout: Space, example: str) -> None:
    """Each example's own check finds numpy's numbers for every function, from whatever folder it is started."""
    checked = python(checkout, str(checkout.root / "examples" / example / "check.py"))

    lines = checked.out.splitlines()
    functions = {name for library in LIBRARIES if library.startswith(f"{example}/") for name in LIBRARIES[library]}
    assert (0, "") == (checked.code, checked.err)
    assert [] == [line for line in lines if not line.endswith(", fine")]
    assert functions <= {line.partition(":")[0] for line in lines}


def test_task_is_checked_and_not_linked(checkout: Space) -> None:
    """The example's task has its three candidates, and its check calls it."""
    checked = python(checkout, str(checkout.root / "examples/attention/check.py"))
    known = json.loads(checkout.read(f"{BUILT}/attention/tuned_softmax/meta.json"))

    assert 3 == known["num_candidates"]
    assert "tuned_softmax: largest error" in checked.out


def test_check_notices_wrong_numbers(checkout: Space) -> None:
    """The checks are no rubber stamp: of a kernel that computes something else they say so, and exit with 1."""
    with edited(checkout.root / "examples/quickstart/saxpy.py", "a * x[i] + y[i]", "a * x[i] - y[i]"):
        checkout.build("//examples/quickstart:saxpy")
        checked = python(checkout, str(checkout.root / "examples/quickstart/check.py"))
    checkout.build("//...")

    assert 1 == checked.code
    assert "saxpy: largest error" in checked.out
    assert "MORE THAN" in checked.out.splitlines()[0]


def test_libraries_load_with_their_functions(checkout: Space) -> None:
    """hidet's own loader takes each output folder as it is, and finds every public function."""
    folders = [str(checkout.root / BUILT / library) for library in LIBRARIES]
    loaded = python(checkout, "-c", LOAD, *folders)

    assert (0, "") == (loaded.code, loaded.err)
    assert LIBRARIES == dict(zip(LIBRARIES, json.loads(loaded.out), strict=True))


def test_report_names_the_exports(checkout: Space) -> None:
    """The command of the mixed example lists the functions under the names they are called by."""
    lines = checkout.read(f"{BUILT}/mixed/exports/exports.txt").splitlines()

    assert ["blur", "conv2d"] == [line.strip().partition("(")[0] for line in lines[1:]]


def test_edit_two_imports_away(checkout: Space) -> None:
    """A number that kernels reach through two imports: those are lowered, and the one that uses it is compiled."""
    with edited(checkout.root / "examples/attention/blocks/numerics.py", "1e-5", "1e-6"):
        changed = checkout.build("//...")
    back = checkout.build("//...")

    package = "//examples/attention"
    lowered = sorted(action for action in changed.actions if action.startswith("HidetLower"))
    assert [f"HidetLower {package}:{name}" for name in ("attention", "causal_attention", "rms_norm")] == lowered
    assert [f"CppCompile {package}:rms_norm"] == [name for name in changed.actions if name.startswith("CppCompile")]
    assert f"CppLink {package}:transformer" in changed.actions
    assert [] == back.actions


def test_edit_of_a_generator(checkout: Space) -> None:
    """A comment in the program that makes a table: the table is made again, comes out the same, and all else stays."""
    with edited(checkout.root / "examples/own_rule/make_table.py", "# Nine digits", "# In float32, nine digits"):
        commented = checkout.build("//...")
    with edited(checkout.root / "examples/own_rule/BUILD.yaml", "intervals: 512", "intervals: 640"):
        refined = checkout.build("//...")
    checkout.build("//...")

    assert ["LookupTable //examples/own_rule:gelu_table"] == commented.actions
    assert [
        "LookupTable //examples/own_rule:gelu_table",
        "HidetLower //examples/own_rule:gelu",
        "HidetCodegen //examples/own_rule:gelu",
        "CppCompile //examples/own_rule:gelu",
        "CppLink //examples/own_rule:gelu",
    ] == refined.actions


def test_select_follows_the_platform(checkout: Space) -> None:
    """For a CPU with wider registers the tuned kernel has a larger tile."""
    target, output = "//examples/gemm_family:gemm_tuned", "examples/gemm_family/gemm_tuned/module.cc"
    checkout.build("--platforms=cpu --arch=x86-64-v4", "--symlink_prefix=/", target)

    assert "float sums[256];" in checkout.read(f"hidet-out/cpu-x86-64-v3/{output}")
    assert "float sums[1024];" in checkout.read(f"hidet-out/cpu-x86-64-v4/{output}")


@pytest.mark.cuda
def test_cuda(checkout: Space) -> None:
    """The kernels for GPUs are built where there is none, for the architecture that is asked for, and load."""
    checkout.build("--platforms=cuda --arch=sm_80", "//examples/cuda:all")
    folder = checkout.root / "hidet-out/cuda-sm_80/examples/cuda/kernels"
    loaded = python(checkout, "-c", LOAD, str(folder))
    checked = python(
        checkout, str(checkout.root / "examples/cuda/check.py"), str(checkout.root / "hidet-out/cuda-sm_80")
    )

    assert [["layer_norm", "matmul", "saxpy"]] == json.loads(loaded.out)
    assert checked.code in (0, 2)
    assert checked.code == 0 or "there is no GPU here" in checked.out


@pytest.mark.gpu
@pytest.mark.cuda
def test_cuda_on_a_gpu(checkout: Space) -> None:
    """Where there is a GPU the kernels compute what torch computes."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    major, minor = torch.cuda.get_device_capability()
    platform = f"cuda-sm_{major}{minor}"
    checkout.build(f"--platforms=cuda --arch=sm_{major}{minor}", "//examples/cuda:all")

    checked = python(
        checkout, str(checkout.root / "examples/cuda/check.py"), str(checkout.root / "hidet-out" / platform)
    )

    assert 0 == checked.code, checked.out + checked.err
