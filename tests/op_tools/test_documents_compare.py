"""The usage blocks of the product documents for the accuracy tool, and the tables they print."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from printed import COMPARED, FACTS, SITE, STAMP, Table, after, masked, tables, with_rows

import op_tools

pytestmark = pytest.mark.device

RAISED = "Inconsistent dtypes: torch.{} torch.float64"


@pytest.fixture(autouse=True)
def verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")


def code_snippet_to_autocompare() -> None:
    weight = torch.ones(8, 4, dtype=torch.bfloat16, device="dipu", requires_grad=True)
    x = torch.ones(2, 3, 4, dtype=torch.bfloat16, device="dipu")
    x.reshape((1, 2, 3, 4))
    output = F.linear(x, weight, None)
    out = torch.zeros(2, 3, 8, dtype=torch.bfloat16, device="dipu")
    out.copy_(output.float().detach())
    variance = output.to(torch.float32).pow(2).mean((-1,), keepdim=True)
    variance.argmax(dim=-1)
    torch.tensor([4096, 8192], dtype=torch.int32, device="dipu").tolist()
    loss = F.cross_entropy(output.float().reshape(6, 8), torch.zeros(6, dtype=torch.int64, device="dipu"))
    loss = torch.ones(1, device="dipu") * loss
    loss.backward()


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> str:
    """Usage 1."""
    with op_tools.OpAutoCompare():
        code_snippet_to_autocompare()
    return capsys.readouterr().out


def call(text: str, name: str, casts: str, source: str) -> list[Table]:
    """The two tables under the heading of a call; which dtypes the reference had stands in the heading."""
    info = f"    cpu_dtype_cast_info(from:to): {{{casts}}}" if casts else ""
    heading = rf"{re.escape(name)} forward_id: \d+{re.escape(info)}\n{SITE}{re.escape(source)}"
    return after(text, heading, 2)


def row(shown: str, atol: str, info: str = "") -> list[str]:
    return [shown, "0.000000000", "0.000000000", atol, atol, info]


def compared(table: Table) -> dict[str, list[str]]:
    assert table.columns == COMPARED
    return {line["name"]: [line[column] for column in COMPARED[1:]] for line in table.rows}


# The documents print on every row that the reference is in float64. The heading says it; a row only where it is wrong.
BFLOAT16 = row("True", "0.001000000")
FLOAT32 = row("True", "0.000010000")
WHOLE = row("True", "0.001000000")  # tensors of integers
NUMBER = row("True", "0.000001000")
NOTHING = row("True", "0.000000000")
FROM_BFLOAT16 = "torch.bfloat16: torch.float64"
FROM_FLOAT32 = "torch.float32: torch.float64"


def test_a_call_with_numbers_in_a_tuple(text: str) -> None:
    name = "torch.Tensor.reshape"
    facts, comparison = call(text, name, FROM_BFLOAT16, "x.reshape((1, 2, 3, 4))")
    assert facts.columns == (*FACTS, "value")
    shape = [f"[1][{place}]" for place in range(4)]
    assert facts.names == [
        f"{name} inputs[0]", *(f"{name} inputs {place}" for place in shape), f"{name} outputs",
        f"{name} inputs(cpu)[0]", *(f"{name} inputs(cpu) {place}" for place in shape), f"{name} outputs(cpu)",
    ]  # fmt: skip
    assert [facts[f"{name} inputs {place}"]["value"] for place in shape] == ["1", "2", "3", "4"]
    numbers = {f"{name} input[{place}]": NUMBER for place in range(1, 5)}
    assert compared(comparison) == {f"{name} input[0]": BFLOAT16, **numbers, f"{name} output": BFLOAT16}


def test_the_reference_is_shown_in_float64(text: str) -> None:
    name = "torch.nn.functional.linear"
    facts, comparison = call(text, name, FROM_BFLOAT16, "output = F.linear(x, weight, None)")
    places = [f"[{place}]" for place in range(3)]
    assert facts.names == [
        *(f"{name} inputs{place}" for place in places), f"{name} outputs",
        *(f"{name} inputs(cpu){place}" for place in places), f"{name} outputs(cpu)",
    ]  # fmt: skip
    assert [line["dtype"] for line in facts.rows[:4]] == ["bfloat16", "bfloat16", "", "bfloat16"]
    assert [line["dtype"] for line in facts.rows[4:]] == ["float64", "float64", "", "float64"]
    assert [line["device"] for line in facts.rows[:4]] == ["dipu:0", "dipu:0", "", "dipu:0"]
    assert [line["device"] for line in facts.rows[4:]] == ["cpu", "cpu", "", "cpu"]
    assert facts[f"{name} inputs[2]"]["value"] == facts[f"{name} inputs(cpu)[2]"]["value"] == "None"
    inputs = {f"{name} input[0]": BFLOAT16, f"{name} input[1]": BFLOAT16, f"{name} input[2]": NOTHING}
    assert compared(comparison) == {**inputs, f"{name} output": BFLOAT16}


def test_a_call_that_writes_to_its_input(text: str) -> None:
    name = "torch.Tensor.copy_"
    source = "out.copy_(output.float().detach())"
    _, comparison = call(text, name, f"{FROM_BFLOAT16}, {FROM_FLOAT32}", source)
    expected = {f"{name} input[0]": BFLOAT16, f"{name} input[1]": FLOAT32, f"{name} output": BFLOAT16}
    assert compared(comparison) == expected


def test_keywords_are_shown_and_not_compared(text: str) -> None:
    name = "torch.Tensor.mean"
    source = "variance = output.to(torch.float32).pow(2).mean((-1,), keepdim=True)"
    facts, comparison = call(text, name, FROM_FLOAT32, source)
    assert f"{name} inputs keepdim" in facts.names and f"{name} inputs(cpu) keepdim" in facts.names
    expected = {f"{name} input[0]": FLOAT32, f"{name} input[1]": NUMBER, f"{name} output": FLOAT32}
    assert compared(comparison) == expected
    name = "torch.Tensor.argmax"
    facts, comparison = call(text, name, FROM_FLOAT32, "variance.argmax(dim=-1)")
    assert facts[f"{name} inputs(cpu) dim"]["value"] == "-1"
    assert compared(comparison) == {f"{name} input": FLOAT32, f"{name} output": WHOLE}


def test_a_call_that_returns_numbers(text: str) -> None:
    name = "torch.Tensor.tolist"
    source = 'torch.tensor([4096, 8192], dtype=torch.int32, device="dipu").tolist()'
    facts, comparison = call(text, name, "", source)
    assert facts.names == [
        f"{name} inputs", f"{name} outputs [0][0]", f"{name} outputs [0][1]",
        f"{name} inputs(cpu)", f"{name} outputs(cpu) [0][0]", f"{name} outputs(cpu) [0][1]",
    ]  # fmt: skip
    assert facts[f"{name} outputs(cpu) [0][1]"]["value"] == "8192"
    expected = {f"{name} input": WHOLE, f"{name} output[0]": NUMBER, f"{name} output[1]": NUMBER}
    assert compared(comparison) == expected


def test_gradients_of_a_call_with_several_inputs(text: str) -> None:
    name = "torch.Tensor.mul"
    facts = with_rows(
        text, (*FACTS, "value"), f"{name} grad_output(cpu)", f"{name} grad_inputs[0]", f"{name} grad_inputs[1]",
        f"{name} grad_inputs(cpu)[0]", f"{name} grad_inputs(cpu)[1]",
    )  # fmt: skip
    assert [line["value"] for line in facts.rows] == ["", "None", "", "None", ""]
    assert [line["device"] for line in facts.rows] == ["cpu", "", "dipu:0", "", "cpu"]
    table = with_rows(text, COMPARED, f"{name} grad[0]", f"{name} grad[1]")
    assert compared(table) == {f"{name} grad[0]": NOTHING, f"{name} grad[1]": FLOAT32}


def test_gradients_of_a_call_with_one_input_that_has_one(text: str) -> None:
    name = "torch.nn.functional.cross_entropy"
    with_rows(text, FACTS, f"{name} grad_output(cpu)", f"{name} grad_inputs", f"{name} grad_inputs(cpu)")
    assert compared(with_rows(text, COMPARED, f"{name} grad")) == {f"{name} grad": FLOAT32}


def test_names_are_padded_as_in_the_documents(text: str) -> None:
    table = with_rows(text, COMPARED, "torch.Tensor.argmax input", "torch.Tensor.argmax output")
    assert table.lines[1].startswith("|              name              | allclose |")
    assert table.lines[3].startswith("| torch.Tensor.argmax input      |   True   | 0.000000000  |")


def test_the_last_table_has_every_call_with_its_number(text: str) -> None:
    last = tables(text)[-1]
    assert last.columns == ("forward_id", *COMPARED)
    numbers = {line["name"]: line["forward_id"] for line in last.rows}
    assert numbers["torch.Tensor.mul input[0]"] == numbers["torch.Tensor.mul grad[1]"]
    assert int(numbers["torch.nn.functional.linear output"]) < int(numbers["torch.Tensor.copy_ output"])
    single = [name for table in tables(text)[:-1] if table.columns == COMPARED for name in table.names]
    assert [line["name"] for line in last.rows] == single


def test_usage2_prints_the_same(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    autocompare = op_tools.OpAutoCompare()
    autocompare.start()
    code_snippet_to_autocompare()
    autocompare.stop()
    again = capsys.readouterr().out

    def shown(printed: str) -> list[object]:
        lines = [line for line in masked(printed).splitlines() if not line.startswith(("|", "+"))]
        return [*lines, *((table.columns, table.names) for table in tables(printed))]

    assert shown(again) == shown(text)


@pytest.mark.parametrize(
    ("dtype", "variable", "value", "expected"),
    [
        ("float16", "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "1e-3,1e-4", ("0.001000000", "0.000100000")),
        ("bfloat16", "AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16", "1e-2,1e-3", ("0.010000000", "0.001000000")),
        ("float32", "AUTOCOMPARE_ERROR_TOLERANCE", "1e-4,1e-5", ("0.000100000", "0.000010000")),
        ("float32", "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "1e-2,1e-3", ("0.010000000", "0.001000000")),
        ("float64", "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT64", "1e-2,1e-3", ("0.010000000", "0.001000000")),
        ("float16", "LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "0.5,0.25", ("0.500000000", "0.250000000")),
    ],
)
def test_tolerances_are_set_by_variables(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    variable: str,
    value: str,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE", "1,1")
    monkeypatch.setenv(variable, value)
    x = torch.ones(2, 2, dtype=getattr(torch, dtype), device="dipu")
    with op_tools.OpAutoCompare():
        F.linear(x, x)
    name = "torch.nn.functional.linear"
    table = with_rows(
        capsys.readouterr().out, COMPARED, f"{name} input[0]", f"{name} input[1]", f"{name} output"
    )
    assert {(line["atol"], line["rtol"]) for line in table.rows} == {expected}


def test_lists_choose_the_operators(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_AUTOCOMPARE_LIST", "torch.Tensor.add, torch.Tensor.mul")
    monkeypatch.setenv("OP_AUTOCOMPARE_DISABLE_LIST", "torch.Tensor.mul")
    x = torch.ones(2, device="dipu")
    with op_tools.OpAutoCompare():
        (x + 1) * 2 - 1
    said = [line for line in capsys.readouterr().out.splitlines() if "Hook on" in line]
    assert said == [
        "apply OpAutoCompareHook on torch.Tensor.add", "skip OpAutoCompareHook on torch.Tensor.mul",
        "skip OpAutoCompareHook on torch.Tensor.sub",
    ]  # fmt: skip


@pytest.fixture
def wrong_linear() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """A device whose matrix product is off by 2^-8 in one element."""

    def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        result = torch.addmm(bias.cpu(), a.cpu(), b.cpu())
        result[0, 0] += 2.0**-8
        return result.to(a.device)

    library = torch.library.Library("aten", "IMPL")
    library.impl("addmm", addmm, "PrivateUse1", allow_override=True)
    yield lambda x: F.linear(x, torch.ones(2, 4, device="dipu"), torch.zeros(2, device="dipu"))
    library._destroy()


@pytest.mark.filterwarnings("ignore:.*[Oo]verrid")
def test_a_wrong_operator_is_shown_and_its_tensors_are_saved(
    wrong_linear: Callable[[torch.Tensor], torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)).to("dipu")
    with op_tools.OpAutoCompare():
        wrong_linear(x)
    text = capsys.readouterr().out
    name = "torch.nn.functional.linear"
    table = next(table for table in tables(text) if f"{name} output" in table.names)
    line = table[f"{name} output"]
    assert (line["allclose"], line["max_abs_diff"]) == ("False", "0.003906250")
    folder = rf"op_tools_results/op_capture_results/{name}/{os.getpid()}/autocompare/\d+/{STAMP}"
    files = re.findall(rf"^({folder}/\S+) saved$", text, re.M)
    assert ["/".join(file.split("/")[-2:]) for file in files] == [
        "device/input.pth", "device/output.pth", "cpu/input.pth", "cpu/output.pth"
    ]  # fmt: skip
    device, cpu = (torch.load(files[place], weights_only=True)["args"][0] for place in (1, 3))
    assert (device - cpu).abs().max() == 2.0**-8
    assert all(Path(file).exists() for file in files)
