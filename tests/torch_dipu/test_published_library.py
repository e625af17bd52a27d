"""A library as third parties write them against the published interface, built by `diopi build-published` and used as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.results import RunReport
from dicore.conformance.runner import RunOptions, run_suite
from diopi.conformance.own_source import OwnSource
from diopi.conformance.suite import DiopiSuite
from diopi.vendors.published import BuiltLibrary, PublishedError, build
from diopi.vendors.published.compilation import missing_symbols, operator_of
from diopi.vendors.published.sources import COMPILED

sys.path.insert(0, str(Path(__file__).parents[1] / "diopi"))
from published_tree import write_tree

pytestmark = pytest.mark.device

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltLibrary:
    folder = tmp_path_factory.mktemp("published")
    # Most of a compilation is torch's headers: one of these files has them, and the empty ones are left out.
    compiled = {name: headers for name, headers in COMPILED.items() if not headers}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "diopi.vendors.published.compilation.COMPILED",
            {"impl/torch/functions/functions.cpp": "aten", **compiled},
        )
        return build(write_tree(folder / "source"), folder / "new" / "libpub.so", jobs=2)


@pytest.fixture(scope="module")
def seen(built: BuiltLibrary) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "published_program.py")],
        env={**os.environ, "DIPU_DEVICE": str(built.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_what_is_exported(built: BuiltLibrary) -> None:
    assert {"diopiAdd", "diopiNLLLoss", "diopiGetVendorName"} <= set(built.functions)
    assert "diopiRMSNorm" in built.left_out and not set(built.left_out) & set(built.functions)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", built.path], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert exported == {*built.functions, "dipuGetVendorTable"}
    assert [path.name for path in built.path.parent.iterdir()] == ["libpub.so"]


def test_true_and_false_are_read_as_the_library_reads_numbers(seen: dict[str, Any]) -> None:
    ones, twos = [1, 1, 1], [2, 2, 2]
    assert seen["vendor"] == "published-cpu"
    assert seen["numbers"] == {
        "add": {"torch.float32": ones, "torch.int64": ones},
        "mul": {"torch.float32": twos, "torch.int64": twos},
        "mul by False": [0, 0, 0],
        "eq": [[True, False], [False, True]],
        "fill": [[True, True], [False, False]],
        "real": [0.5, 0.5, 0.5],
    }


@pytest.mark.parametrize(
    ("which", "kind", "text"),
    [
        ("of torch", "IndexError", "diopiIndexSelect threw a C++ exception: index out of range"),
        (
            "of the standard library",
            "RuntimeError",
            "diopiLog threw a C++ exception: the logarithm of a negative number",
        ),
        ("of no class", "RuntimeError", "diopiSqrt threw a C++ exception that tells nothing of itself"),
        ("after a refused buffer", "OutOfMemoryError", "out of memory"),
    ],
)
def test_an_exception_becomes_an_error_of_its_function(
    seen: dict[str, Any], which: str, kind: str, text: str
) -> None:
    found = seen["errors"][which]
    assert found[0] == kind and text in found[1], found
    assert "frame #" not in found[1]
    assert seen["errors"]["afterwards"] == ["[-2.0, 4.0]"]


def test_random_numbers_go_on_and_begin_again(seen: dict[str, Any]) -> None:
    first, second, *again = seen["drawn"]
    assert first != second and again == [first, second]
    assert all(2 <= number < 3 for number in (*first, *second))


def test_first_forms_serve_where_the_second_are_missing(seen: dict[str, Any]) -> None:
    assert len(seen["losses"]) == 6
    for row in seen["losses"]:
        for ours, torchs in zip(row["dipu"], row["cpu"], strict=True):
            assert ours == pytest.approx(torchs, rel=1e-5, abs=1e-6)
    assert seen["zeros"] == [{"zero_": {"diopi": 1}}, [0, 0, 0]]
    ways = seen["ways of losses"]
    assert ways["nll_loss_forward"] == {"diopi": 12} and ways["nll_loss_backward"] == {"diopi": 6}


def test_a_convolution_is_told_that_its_bias_has_a_gradient(seen: dict[str, Any]) -> None:
    ways, gradients = seen["bias"]
    assert ways == {"diopi": 1}
    assert gradients["dipu"] == pytest.approx(gradients["cpu"], rel=1e-4)


# ---- the same library under the conformance suite ----


@pytest.fixture(scope="module")
def report(built: BuiltLibrary) -> RunReport:
    names = ("AddScalar", "MulScalar", "EqScalar", "Fill", "Log", "Sqrt", "Exp", "Contiguous")
    functions = frozenset(f"diopi{name}" for name in names)
    wanted = CaseFilter(functions, frozenset({"float32", "int64", "bool"}))
    return run_suite(DiopiSuite(built.path, [OwnSource()]), RunOptions(wanted, workers=1))


def test_no_exception_ends_a_worker(report: RunReport) -> None:
    by_function = {
        name: {r.reason for r in report.results if r.function == name and r.status == "fail"}
        for name in report.functions()
    }
    assert not [r for r in report.results if "crashed" in r.reason]
    assert by_function["diopiSqrt"] == {"diopiSqrt threw a C++ exception: int, which tells nothing of itself"}
    assert by_function["diopiExp"] == {"diopiExp threw a C++ exception: std::runtime_error: no buffer"}
    log = "diopiLog threw a C++ exception: std::domain_error: the logarithm of a negative number"
    assert log in by_function["diopiLog"]
    for name in ("diopiAddScalar", "diopiMulScalar", "diopiEqScalar", "diopiFill", "diopiContiguous"):
        assert by_function[name] == set()


def test_numbers_are_covered_by_cases_that_pass(report: RunReport) -> None:
    booleans = {
        case.id
        for name in ("diopiAddScalar", "diopiMulScalar", "diopiEqScalar", "diopiFill")
        for case in OwnSource().cases(name)
        if any(isinstance(case.arguments.get(argument), bool) for argument in ("other", "value"))
    }
    ran = Counter(r.function for r in report.results if r.id in booleans and r.status == "pass")
    assert len(ran) == 4 and min(ran.values()) >= 2


# ---- what can be wrong with a build ----


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(
        PublishedError, match=r"is no checkout of DIOPI: it has no impl/torch/functions/functions.cpp"
    ):
        build(tmp_path, tmp_path / "lib.so")


def test_a_generator_that_fails(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "adaptor/codegen/gen.py").write_text("import no_such_module")
    with pytest.raises(
        PublishedError, match=r"gen.py failed: ModuleNotFoundError: No module named 'no_such_module'"
    ):
        build(tree, tmp_path / "lib.so")


def test_a_compiler_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        PublishedError, match=r"there is no no-such-compiler here. Install a C\+\+ compiler, or set CXX"
    ):
        build(write_tree(tmp_path), tmp_path / "lib.so")


def test_a_torch_without_cuda(tmp_path: Path) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    with pytest.raises(PublishedError, match=r"--device cuda: the torch in .* has no CUDA"):
        build(write_tree(tmp_path), tmp_path / "lib.so", "cuda")


def test_symbols_of_what_was_left_out() -> None:
    lines = [
        "a.o:",
        "                 U _ZN4impl4cuda12diopiRMSNormEP12diopiContext",
        "                 U _ZN6vision3ops10nms_kernelERKN2at6TensorES4_d",
        "                 U _ZN2at4_ops3add4callERKNS_6TensorE",
        "0000000000000000 T _ZN4impl4cuda8diopiAddEP12diopiContext",
        "0000000000000010 T diopiAdd",
        "",
        "                 U _ZN4impl4cuda8diopiAddEP12diopiContext",
    ]
    missing, defined = missing_symbols(lines)
    assert {operator_of(symbol) for symbol in missing} == {"diopiRMSNorm", ""}
    assert missing == {line.split()[1] for line in lines[1:3]}
    assert "diopiAdd" in defined
