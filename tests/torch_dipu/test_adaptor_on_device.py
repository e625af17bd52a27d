"""Rules (convert_config.yaml) in front of the vendor, under torch: values, counts, the report, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from forked_python import run_python

from diopi.adaptor import merged, read_costs

# The simulated chip as one without int64 and float64.
NARROW = "- common_config:\n    dtype: (int64)->int32, (float64)->float32\n"


def run(folder: Path, rules: str, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own: rules are read once, at the start."""
    (folder / "convert_config.yaml").write_text(rules)
    return run_python(
        "-c",
        "import torch\n" + textwrap.dedent(code),
        cwd=folder,
        timeout=120,
        env={**os.environ, "DIPU_ADAPTOR_CONFIG": "convert_config.yaml", **environment},
    )


def test_values_conversions_and_report(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        NARROW,
        """
        import json
        from torch_dipu.adaptor import costs
        x = torch.arange(6, device="dipu").reshape(2, 3)
        y = torch.add(x, x, alpha=3)
        z = torch.add(x, torch.ones_like(x))
        fine = torch.tensor([1.0 + 2**-40], dtype=torch.float64, device="dipu")
        shown = {c.name: (c.calls, c.conversions, c.errors) for c in costs()}
        print(json.dumps([y.cpu().tolist(), str(y.dtype), z.cpu().tolist(), fine.mul(1).item() == 1.0, shown["diopiAdd"]]))
        """,
        DIOPI_ADAPTOR_REPORT="costs.jsonl",
    )
    assert done.returncode == 0, done.stderr
    total, dtype, plus_one, rounded, add = json.loads(done.stdout)
    assert total == [[0, 4, 8], [12, 16, 20]]
    assert dtype == "torch.int64"
    assert plus_one == [[1, 2, 3], [4, 5, 6]]
    assert rounded  # it was computed in float32
    # x + x: one tensor in, one out; x + 1: two in, one out
    assert add == [2, 5, 0]
    written = {cost.name: cost for cost in read_costs(tmp_path / "costs.jsonl")}
    assert (written["diopiAdd"].calls, written["diopiAdd"].conversions) == (2, 5)
    assert written["diopiAdd"].bytes == 5 * 6 * (8 + 4)
    assert written["diopiAdd"].nanoseconds > 0
    assert any(name.startswith("diopiMul") for name in written)


def test_reports_of_several_processes_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        done = run(
            tmp_path,
            NARROW,
            "torch.arange(4, device='dipu').add(1)",
            DIOPI_ADAPTOR_REPORT="costs.jsonl",
        )
        assert done.returncode == 0, done.stderr
    (cost,) = (c for c in merged(read_costs(tmp_path / "costs.jsonl")) if c.name == "diopiAddScalar")
    assert (cost.calls, cost.conversions) == (2, 4)


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        NARROW,
        "print(torch.arange(4, device='dipu').add(1).sum().item())",
        DIOPI_ADAPTOR_REPORT="no/such/folder/costs.jsonl",
    )
    assert done.returncode == 0
    assert done.stdout == "10\n"
    assert "DIOPI_ADAPTOR_REPORT=" in done.stderr and "cannot be written: No such file" in done.stderr


def test_a_value_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        NARROW,
        """
        from torch_dipu.adaptor import costs
        big = torch.tensor([1, 2, 3_000_000_000]).to("dipu")
        fine = torch.tensor([1e300], dtype=torch.float64).to("dipu")
        for attempt in (lambda: big + big, lambda: torch.ones_like(big) * 2**40, lambda: fine * 2):
            try:
                print("wrapped to", attempt().cpu().tolist())
            except RuntimeError as error:
                print(error)
        x = torch.arange(3, device="dipu")
        print((x + x).cpu().tolist(), {c.name: c.errors for c in costs()}["diopiAdd"])
        """,
    )
    assert done.returncode == 0, done.stderr
    first, second, third, after = done.stdout.splitlines()
    assert first.startswith(
        "dipu: add.Tensor failed (error 1): diopiAdd: input: element 2 is 3000000000, which int32"
    )
    assert "the number 1099511627776 does not fit" in second
    assert "which float32 cannot hold" in third
    assert after == "[0, 2, 4] 1"  # the process goes on, and the error was counted


def test_what_a_list_sends_to_the_fallback_is_not_converted(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        NARROW,
        """
        from torch_dipu.adaptor import costs
        x = torch.tensor([2**40]).to("dipu")
        print((x + x).cpu().item(), [c.name for c in costs()])
        """,
        DIPU_FORCE_FALLBACK_OPS_LIST="add.Tensor",
    )
    assert done.stdout == f"{2**41} []\n", done.stderr


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ("- diopiAdd:\n    dtype: (int64)->int99\n", "convert_config.yaml:2:"),
        ("- diopiAdd:\n    dtypes: (int64)->int32\n", "convert_config.yaml:2:5: "),
        ("- diopiAdd:\n    dtype: (int64)->int32\n- diopiAddd:\n    contiguous: true\n", "convert_config.yaml:3:3: "),
        ("- diopiAdd: [\n", "this is not YAML"),
    ],
)  # fmt: skip
def test_wrong_rules_name_their_line_when_the_device_is_used(
    tmp_path: Path, rules: str, complaint: str
) -> None:
    done = run(tmp_path, rules, "print('imported')\ntorch.zeros(1, device='dipu')")
    assert done.stdout == "imported\n"
    assert done.returncode == 1
    last = done.stderr[done.stderr.index("RuntimeError: ") :]
    assert last.startswith("RuntimeError: dipu: DIPU_ADAPTOR_CONFIG=convert_config.yaml: ")
    assert complaint in last


def test_rules_that_do_not_exist(tmp_path: Path) -> None:
    done = run(tmp_path, "", "torch.zeros(1, device='dipu')", DIPU_ADAPTOR_CONFIG="other.yaml")
    assert "DIPU_ADAPTOR_CONFIG=other.yaml: other.yaml cannot be read: No such file" in done.stderr
    assert done.returncode == 1
