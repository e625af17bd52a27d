"""PyTorch's test files, case by case: a small tree whose tests pass, fail, skip, hang, crash and cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("expecttest", reason="torch's test helpers need it")

from _ditorch.torch_tests import State, results
from _ditorch.torch_tests.command import program
from _ditorch.torch_tests.source.run import dtype_in, operator_in

HEAD = """
import os, signal, sys, time, unittest
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, run_tests
"""
TAIL = """
instantiate_device_type_tests(TestPlanted, globals())

class TestPlain(TestCase):
    def test_for_no_device(self):
        pass

if __name__ == "__main__":
    run_tests()
"""
FILES = {
    "test_good.py": """
class TestPlanted(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_cumsum(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(x.device.type, torch.device(device).type)
        self.assertEqual(x.cumsum(0).tolist(), [1, 2, 3])

    def test_fails(self, device):
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))

    def test_raises(self, device):
        raise ValueError("planted\\nin two lines")

    @unittest.skip("planted")
    def test_skips(self, device):
        pass

    @unittest.expectedFailure
    def test_expects_failure(self, device):
        self.fail()

    def test_leaves(self, device):
        sys.exit(3)
""",
    "nn/test_bad.py": """
class TestPlanted(TestCase):
    def test_a_crash(self, device):
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_b_hang(self, device):
        time.sleep(60)

    def test_c_after(self, device):
        self.assertEqual((torch.ones(1, device=device) + 1).item(), 2)
""",
    "test_import.py": "import no_such_module_at_all\nclass TestPlanted(TestCase):\n    pass\n",
    "test_unwilling.py": "raise unittest.SkipTest('not here')\nclass TestPlanted(TestCase):\n    pass\n",
}
DEVICES = ["cpu", pytest.param("dipu", marks=pytest.mark.device)]
EXPECTED = {
    ("test_good.py", "test_cumsum_{}_float32"): State.PASSED,
    ("test_good.py", "test_cumsum_{}_int64"): State.PASSED,
    ("test_good.py", "test_fails_{}"): State.FAILED,
    ("test_good.py", "test_raises_{}"): State.ERROR,
    ("test_good.py", "test_skips_{}"): State.SKIPPED,
    ("test_good.py", "test_expects_failure_{}"): State.PASSED,
    ("test_good.py", "test_leaves_{}"): State.ERROR,
    ("nn/test_bad.py", "test_a_crash_{}"): State.CRASH,
    ("nn/test_bad.py", "test_b_hang_{}"): State.TIMEOUT,
    ("nn/test_bad.py", "test_c_after_{}"): State.PASSED,
    ("test_import.py", "(import)"): State.ERROR,
    ("test_unwilling.py", "(import)"): State.SKIPPED,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "pytorch"
    for name, text in FILES.items():
        path = root / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text + TAIL)
    (root / "version.txt").write_text("1.0.0a0\n")
    return root


def run(tree: Path, csv: Path, device: str, *arguments: str) -> tuple[int, list[results.Row], str]:
    words = ["--device", device, "--source", str(tree), "--csv", str(csv), "--jobs", "2", "--timeout", "10"]
    result = CliRunner().invoke(program, [*words, *arguments])
    return result.exit_code, results.read(csv) if csv.exists() else [], result.output


@pytest.mark.parametrize("device", DEVICES)
def test_every_case_has_its_result_and_costs_only_itself(tree: Path, tmp_path: Path, device: str) -> None:
    csv = tmp_path / "r.csv"
    code, found, text = run(
        tree, csv, device, "--files", "test_.*,nn/test_bad.py", "--html", str(tmp_path / "r.html")
    )
    assert code == 1
    assert {(row.file, row.case.rpartition(".")[2]): row.result for row in found} == {
        (file, case.format(device)): state for (file, case), state in EXPECTED.items()
    }
    by_name = {row.case.rpartition(".")[2]: row for row in found}
    assert by_name[f"test_raises_{device}"].message == "ValueError: planted in two lines"
    assert "SIGSEGV" in by_name[f"test_a_crash_{device}"].message
    assert "in test_a_crash" in by_name[f"test_a_crash_{device}"].detail
    assert by_name[f"test_b_hang_{device}"].message == "timed out after 10 s"
    assert by_name[f"test_skips_{device}"].message == "planted"
    assert (
        by_name[f"test_cumsum_{device}_int64"].operator,
        by_name[f"test_cumsum_{device}_int64"].dtype,
    ) == (
        "cumsum",
        "int64",
    )
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in found[-2].message
    words = " ".join(text.split())
    assert "The sources are of torch 1.0.0a0" in words
    assert "2 cases of classes that are not made for a device were left out" in words
    assert "2 with a process for each case" in words
    assert "test_fails" in (tmp_path / "r.html").read_text()


def test_a_run_can_be_gone_on_with(tree: Path, tmp_path: Path) -> None:
    csv = tmp_path / "r.csv"
    code, first, _ = run(tree, csv, "cpu", "--files", "test_good.py", "--cases", "cumsum")
    assert (code, len(first)) == (0, 2)
    code, found, text = run(tree, csv, "cpu", "--files", "test_good.py", "--cases", "cumsum|skips")
    assert (code, "exists. Go on from it with --resume" in " ".join(text.split())) == (2, True)
    csv.write_text(
        csv.read_text().replace(
            "cumsum_cpu_int64,cumsum,int64,passed", "cumsum_cpu_int64,cumsum,int64,failed"
        )
    )
    with csv.open("a") as file:
        file.write("cpu,torn")
    code, found, text = run(
        tree, csv, "cpu", "--files", "test_good.py", "--cases", "cumsum|skips", "--resume"
    )
    assert code == 1  # the result that is there is kept: the case is not run again
    assert [row.result for row in found] == [State.PASSED, State.FAILED, State.SKIPPED]
    assert "2 results were there from before" in text
    csv.write_text(csv.read_text().replace("cpu,", "dipu,", 1))
    code, _, text = run(tree, csv, "cpu", "--files", "test_good.py", "--resume")
    assert (code, "holds results of dipu" in " ".join(text.split())) == (2, True)


def test_the_device_file_skips_and_excuses_and_tells_what_is_stale(tree: Path, tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text(
        """
[source]
files = ["test_good.py"]
[[source.skip]]
case = '.*\\.test_leaves_.*'
reason = "it ends the process"
[[source.known]]
case = '.*\\.test_(fails|raises)_.*'
kind = "gap"
match = "Tensor-likes are not|planted"
reason = "the chip is wrong"
[[source.known]]
file = 'test_good\\.py'
case = '.*\\.test_cumsum_cpu_int64'
kind = "gap"
reason = "was wrong"
"""
    )
    code, found, text = run(tree, tmp_path / "r.csv", "cpu", "--config", str(config))
    assert code == 0
    results = {row.case.rpartition(".")[2]: (row.result, row.reason) for row in found}
    assert results["test_leaves_cpu"] == (State.SKIPPED, "it ends the process")
    assert results["test_fails_cpu"] == results["test_raises_cpu"] == (State.GAP, "the chip is wrong")
    assert "stale: listed and passes" in text and "test_cumsum_cpu_int64" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--files", "test_none.py"], "no test file of"),
        (["--cases", "("], "is no pattern"),
        (["--quick"], "--quick can be used only without --source"),
    ],
)
def test_wrong_uses_are_said_clearly(tree: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    code, _, text = run(tree, tmp_path / "r.csv", "cpu", *arguments)
    assert (code, said in " ".join(text.split())) == (2, True)


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    for folder, said in ((tmp_path, "holds no test files"), (tmp_path / "none", "is no folder")):
        result = CliRunner().invoke(program, ["--device", "cpu", "--source", str(folder)])
        assert (result.exit_code, said in " ".join(result.output.split())) == (2, True)


@pytest.mark.parametrize(
    ("case", "operator", "dtype"),
    [
        ("TestX.test_out_nn_functional_relu_dipu_float32", "nn.functional.relu", "float32"),
        ("TestX.test_linalg_svd_dipu_complex128", "linalg.svd", "complex128"),
        ("TestX.test_index_select_of_bool_dipu", "index_select", "bool"),
        ("TestX.test_some_words_dipu", "", ""),
    ],
)
def test_operator_and_dtype_are_read_from_the_name(case: str, operator: str, dtype: str) -> None:
    assert (operator_in(case), dtype_in(case)) == (operator, dtype)
