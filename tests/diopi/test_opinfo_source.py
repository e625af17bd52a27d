"""Cases from PyTorch's operator database."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("expecttest")
pytest.importorskip("scipy")

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.cases import DecidedCase
from diopi.conformance import opinfo_source
from diopi.conformance.opinfo_source import OpInfoSource
from diopi.conformance.recorded_calls import CallRecorder, snapshot, template
from diopi.conformance.references import evaluate
from diopi.table import load


def test_a_snapshot_keeps_strides_and_values_and_no_more():
    base = torch.arange(100.0)
    seen = base.as_strided((3, 2), (10, 2), 5)
    kept = snapshot(seen)
    base.zero_()
    assert kept.tolist() == [[5, 7], [15, 17], [25, 27]]
    assert kept.stride() == (10, 2) and kept.untyped_storage().nbytes() == 23 * 4
    wide = snapshot(torch.ones(1).expand(4))
    assert wide.stride() == (0,) and wide.untyped_storage().nbytes() == 4
    assert template(torch.empty(2, 3).t()).stride() == (1, 3)


def test_a_recorder_sees_forward_and_backward_but_no_views():
    seen = []
    x = torch.ones(3, 2, requires_grad=True)
    with CallRecorder(lambda name, values: seen.append((name, values.get("dim")))):
        x.t().exp().sum(0).sum().backward()
    names = [name for name, _ in seen]
    assert "exp" in names and ("sum.dim_IntList", [0]) in seen and "mul.Tensor" in names
    assert "t" not in names and "expand" not in names


def test_cases_of_an_entry_can_be_computed_and_are_what_torch_gave():
    cases = list(OpInfoSource().cases("nn.functional.leaky_relu"))
    functions = {case.function for case in cases}
    assert {"diopiLeakyRelu", "diopiLeakyReluBackward"} <= functions
    assert {"float32", "bfloat16", "float64"} <= {case.dtype for case in cases}
    assert [case.id for case in cases] == [f"opinfo:nn.functional.leaky_relu:{i}" for i in range(len(cases))]
    case = next(c for c in cases if c.function == "diopiLeakyRelu" and c.dtype == "float32")
    (value,) = evaluate(load().entries["diopiLeakyRelu"], case.arguments)
    assert case.arguments["out"].shape == value.shape and value.dtype == torch.float32


def test_each_signature_is_one_case_and_kinds_are_limited():
    counts = {}
    for case in OpInfoSource().cases("add"):
        counts[case.function, case.dtype] = counts.get((case.function, case.dtype), 0) + 1
    assert 1 < counts["diopiAdd", "float32"] <= opinfo_source.PER_FUNCTION["float32"]
    assert counts["diopiAdd", "int64"] >= 2 and counts["diopiAddInp", "float32"] >= 1


def test_groups_are_those_that_are_about_a_function():
    source = OpInfoSource()
    groups = source.groups(frozenset(["diopiAdd"]))
    assert "add" in groups and len(groups) < 30
    everything = source.groups(None)
    assert len(everything) > 300 and set(groups) < set(everything)
    assert source.groups(frozenset()) == []


def test_the_same_cases_in_another_process():
    program = (
        "from diopi.conformance.opinfo_source import OpInfoSource\n"
        "for c in OpInfoSource().cases('addcmul'):\n"
        "    print(c.id, c.function, c.dtype, c.arguments['input'].to(complex).sum().item())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    here = [
        f"{c.id} {c.function} {c.dtype} {c.arguments['input'].to(complex).sum().item()}"
        for c in OpInfoSource().cases("addcmul")
    ]
    assert told == here and sum("diopiAddcmul " in line for line in here) > 5


class _Sample:
    def __init__(self, input: torch.Tensor, *args: object) -> None:
        self.input, self.args, self.kwargs = input, args, {}

    @staticmethod
    def output_process_fn_grad(result):
        return result


class _Entry:
    """An entry of the database: adds, and refuses what is to be refused."""

    name, variant_test_name, supports_autograd = "entry", "", True

    def __init__(self, refuses: str) -> None:
        self._refuses = refuses

    def supported_dtypes(self, device):
        return {torch.float32}

    def sample_inputs(self, device, dtype, requires_grad):
        if self._refuses == "samples":
            raise ModuleNotFoundError("no scipy")
        yield _Sample(torch.ones(1, requires_grad=requires_grad), torch.ones(3))

    def __call__(self, x, y):
        if self._refuses == "forward":
            raise RuntimeError("not today\nand not tomorrow")
        return x + y

    def get_inplace(self):
        return self._in_place

    def _in_place(self, x, y):
        if self._refuses == "in place":
            raise RuntimeError("no in-place form")
        return x.add_(y)  # refused: the result is larger than the input


@pytest.mark.parametrize(
    ("refuses", "reasons"),
    [
        ("nothing", []),
        ("samples", ["PyTorch's database has no samples: no scipy"]),
        ("forward", ["PyTorch refuses entry on the CPU: not today"]),
        ("in place", ["PyTorch refuses entry_ on the CPU: no in-place form"]),
    ],
)
def test_what_pytorch_refuses_is_given_back_with_its_words(refuses, reasons):
    seen = []
    entry = _Entry(refuses)
    assert opinfo_source.run_samples(entry, torch.float32, lambda name, values: seen.append(name)) == reasons
    assert ("add.Tensor" in seen) == (refuses in ("nothing", "in place"))
    assert opinfo_source.run_samples(entry, torch.int64, lambda name, values: None) == []


def test_refused_samples_are_skipped_cases_behind_the_others(monkeypatch):
    def refusing(entry, dtype, watch, most=None):
        run(entry, dtype, watch, most)
        return ["why"] if dtype == torch.bfloat16 else []

    before = [case.id for case in OpInfoSource().cases("erf")]
    run = opinfo_source.run_samples
    monkeypatch.setattr(opinfo_source, "run_samples", refusing)
    *cases, last = OpInfoSource().cases("erf")
    assert [case.id for case in cases] == before and not any(isinstance(c, DecidedCase) for c in cases)
    assert isinstance(last, DecidedCase) and (last.function, last.dtype, last.reason) == (
        "",
        "bfloat16",
        "why",
    )
    assert last.id == f"opinfo:erf:{len(before)}"
    assert CaseFilter(frozenset({"diopiErf"})).wants(last)


def test_an_entry_that_this_pytorch_does_not_have_is_a_skipped_case(monkeypatch):
    monkeypatch.setattr(opinfo_source, "database", dict)
    (case,) = OpInfoSource().cases("erf")
    assert isinstance(case, DecidedCase) and case.id == "opinfo:erf:0"
    assert case.reason == f"the operator database of PyTorch {torch.__version__} has no entry erf"


def test_without_the_database_the_source_says_what_to_install(monkeypatch):
    monkeypatch.setattr(opinfo_source.importlib.util, "find_spec", lambda name: None)
    source = OpInfoSource()
    assert "pip install expecttest scipy" in (source.problem() or "")
    assert source.groups(None) == []
    with pytest.raises(LookupError, match="no entry 'nonsense'"):
        next(source.cases("nonsense"))
