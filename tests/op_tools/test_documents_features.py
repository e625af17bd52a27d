"""The usage blocks of the product documents for the dtype cast and for apply_feature, and what they print."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from printed import CAPTURED, CAST, COMPARED, FACTS, STAMP, after, in_order, tables, with_rows

import op_tools

pytestmark = pytest.mark.device

BOTH = "torch.float16->torch.float32,torch.bfloat16->torch.float32"


class TestDtypeCast:
    """One object through usage 2, 3 and 4: what it casts follows the variables at each start."""

    @pytest.fixture(autouse=True)
    def verbose(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
        # What the blocks set by os.environ[...] = ... is taken back after the test.
        for name in ("DICT", "LIST", "DISABLE_LIST"):
            monkeypatch.setenv(f"OP_DTYPE_CAST_{name}", "")
            monkeypatch.delenv(f"OP_DTYPE_CAST_{name}")

    def f(self) -> None:
        total_x = torch.ones(2, 8, dtype=torch.bfloat16, device="dipu")
        weight = torch.ones(4, 8, dtype=torch.bfloat16, device="dipu")
        half = torch.ones(2, 3, dtype=torch.float16, device="dipu")
        F.silu(F.linear(total_x, weight, None))
        result = half + half
        assert result.dtype == torch.float16 and result.sub(half).sort().values.dtype == torch.float16

    def test_usage1(self, capsys: pytest.CaptureFixture[str]) -> None:
        os.environ["OP_DTYPE_CAST_DICT"] = BOTH
        with op_tools.OpDtypeCast():
            self.f()
        text = capsys.readouterr().out
        name = "torch.nn.functional.linear"
        table = after(text, f"apply OpDtypeCastHook on {re.escape(name)}")[0]
        assert table.columns == CAST
        up, down = "torch.bfloat16 -> torch.float32", "torch.float32 -> torch.bfloat16"
        assert [tuple(row.values()) for row in table.rows] == [
            (name, "input[0]", up, BOTH), (name, "input[1]", up, BOTH), (name, "output[0]", down, BOTH)
        ]  # fmt: skip
        silu = after(text, r"apply OpDtypeCastHook on torch\.nn\.functional\.silu")[0]
        assert [row["target"] for row in silu.rows] == ["input[0]", "output[0]"]

    def test_usage2(self, capsys: pytest.CaptureFixture[str]) -> None:
        dtype_caster = op_tools.OpDtypeCast()
        dtype_caster.start()
        for _ in range(3):
            self.f()
        dtype_caster.stop()
        text = capsys.readouterr().out
        names = [table.names[0] for table in tables(text)]
        once = ["torch.nn.functional.linear", "torch.nn.functional.silu"]
        once += ["torch.Tensor.add", "torch.Tensor.sub", "torch.Tensor.sort"]
        assert names == once * 3
        assert {row["config"] for table in tables(text) for row in table.rows} == {BOTH}, "the default"

    def test_usage3_and_usage4(self, capsys: pytest.CaptureFixture[str]) -> None:
        dtype_caster = op_tools.OpDtypeCast()
        os.environ["OP_DTYPE_CAST_DISABLE_LIST"] = "torch.Tensor.add,torch.Tensor.sub"
        dtype_caster.start()
        self.f()
        dtype_caster.stop()
        text = capsys.readouterr().out
        in_order(
            text, "apply OpDtypeCastHook on torch.nn.functional.linear", "skip OpDtypeCastHook on torch.Tensor.add",
            "skip OpDtypeCastHook on torch.Tensor.sub", "apply OpDtypeCastHook on torch.Tensor.sort",
        )  # fmt: skip
        assert {name for table in tables(text) for name in table.names} == {
            "torch.nn.functional.linear", "torch.nn.functional.silu", "torch.Tensor.sort"
        }  # fmt: skip

        os.environ["OP_DTYPE_CAST_DISABLE_LIST"] = ""
        os.environ["OP_DTYPE_CAST_LIST"] = "torch.Tensor.sort,torch.Tensor.add"  # only cast these op
        os.environ["OP_DTYPE_CAST_DICT"] = "torch.half->torch.bfloat16"
        dtype_caster.start()
        self.f()
        dtype_caster.stop()
        text = capsys.readouterr().out
        in_order(
            text, "skip OpDtypeCastHook on torch.nn.functional.linear", "apply OpDtypeCastHook on torch.Tensor.add",
            "skip OpDtypeCastHook on torch.Tensor.sub", "apply OpDtypeCastHook on torch.Tensor.sort",
        )  # fmt: skip
        add = with_rows(text, CAST, *["torch.Tensor.add"] * 3)
        assert [row["action"] for row in add.rows] == [
            "torch.float16 -> torch.bfloat16", "torch.float16 -> torch.bfloat16", "torch.bfloat16 -> torch.float16"
        ]  # fmt: skip
        assert {row["config"] for row in add.rows} == {"torch.half->torch.bfloat16"}


# The block that all four examples of apply_feature share, and then each of them; only prints between are ours.
FEATURES = """
import torch
import ditorch
import op_tools
import os

def custom_condition(a, b):
    if a.dtype == torch.float16:
        print("hook enable because a.dtype is float16")
        return True
    elif a.dim() == 2:
        print("hook enable because a.dim() is 2")
        return True
    else:
        print("hook disable")
        return False

x = torch.randn(2, 3, 4, dtype=torch.float16).cuda()
y = torch.randn(4, 2, dtype=torch.float).cuda()
z = torch.randn(2, 3, 4, dtype=torch.float).cuda()

print("--- 1")
op_tools.apply_feature("torch.add", feature="fallback", condition_func=custom_condition)
print(torch.add(x, x))

print("--- 2")
op_tools.apply_feature("torch.sub", feature="autocompare", condition_func=custom_condition)
torch.sub(y, y)
torch.sub(z, z)

print("--- 3")
op_tools.apply_feature("torch.mul", feature="op_capture", condition_func=custom_condition)
torch.mul(x, x)

print("--- 4")
op_tools.apply_feature("torch.div", feature="cast_dtype", condition_func=custom_condition)
os.environ["OP_DTYPE_CAST_DICT"] = "torch.float32->torch.float16"
torch.div(y, y)
"""


def test_apply_feature_as_the_documents_use_it(run_python: Callable[..., str]) -> None:
    first, fallback, compare, capture, cast = re.split(r"^--- \d\n", run_python(FEATURES), flags=re.M)
    assert re.fullmatch(r"ditorch\.framework: torch_dipu:\S+ \(host\)\n", first)
    check_fallback(fallback)
    check_compare(compare)
    check_capture(capture)
    check_cast(cast)


def check_fallback(text: str) -> None:
    heading = r"torch\.add    forward_id: 1\n<\w+>:\d+ <module>:.*"
    lines = (
        rf"hook enable because a\.dtype is float16\napply OpFallbackHook on torch\.add\n\n\n\n{heading}\n\+-"
    )
    assert re.match(lines, text), text
    sides = [
        "input(device)[0]",
        "input(device)[1]",
        "input(cpu)[0]",
        "input(cpu)[1]",
        "output(device)",
        "output(cpu)",
    ]
    table = with_rows(text, FACTS, *(f"torch.add {side}" for side in sides))
    assert {row["dtype"] for row in table.rows} == {"float16"}
    assert [row["device"] for row in table.rows] == ["dipu:0", "dipu:0", "cpu", "cpu", "dipu:0", "cpu"]
    # The values themselves and what is called to print them are not taken: one table, one line.
    assert len(tables(text)) == 1 and text.count("apply OpFallbackHook") == 1
    assert "device='dipu:0'" in text and "dtype=torch.float16)" in text


def check_compare(text: str) -> None:
    heading = r"torch\.sub forward_id: 2( {4}cpu_dtype_cast_info\(from:to\): \{.*\})?\n<\w+>:\d+ <module>:.*"
    lines = (
        rf"hook enable because a\.dim\(\) is 2\napply OpAutoCompareHook on torch\.sub\n\n\n\n{heading}\n\+-"
    )
    assert re.match(lines, text), text
    sides = ["inputs[0]", "inputs[1]", "outputs", "inputs(cpu)[0]", "inputs(cpu)[1]", "outputs(cpu)"]
    with_rows(text, FACTS, *(f"torch.sub {side}" for side in sides))
    table = with_rows(text, COMPARED, "torch.sub input[0]", "torch.sub input[1]", "torch.sub output")
    assert {(row["allclose"], row["atol"], row["rtol"]) for row in table.rows} == {
        ("True", "0.000010000", "0.000010000")
    }
    assert text.endswith("hook disable\nskip OpAutoCompareHook on torch.sub\n")
    assert len(tables(text)) == 2, "the fallback that is still applied shows it nothing more"


def check_capture(text: str) -> None:
    folder = rf"op_tools_results/op_capture_results/torch\.mul/\d+/3/{STAMP}"
    lines = ["hook enable because a.dtype is float16", "apply OpCaptureHook on torch.mul"]
    lines += [rf"{folder}/input\.pth saved", rf"{folder}/output\.pth saved"]
    assert re.match("\n".join(lines), text), text
    with_rows(text, CAPTURED, "torch.mul inputs[0]", "torch.mul inputs[1]", "torch.mul outputs")


def check_cast(text: str) -> None:
    assert text.startswith("hook enable because a.dim() is 2\n")
    (table,) = tables(text)
    config = "torch.float32->torch.float16"
    down, up = "torch.float32 -> torch.float16", "torch.float16 -> torch.float32"
    assert table.columns == CAST
    assert [tuple(row.values()) for row in table.rows] == [
        ("torch.div", "input[0]", down, config), ("torch.div", "input[1]", down, config),
        ("torch.div", "output[0]", up, config),
    ]  # fmt: skip


def test_the_other_features_print_arguments_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, 3, device="dipu")
    for feature in ("dump_op_args", "measure_op_time"):
        with op_tools.apply_feature("torch.exp", feature=feature):
            torch.exp(x)
            torch.sin(x)
    text = capsys.readouterr().out
    in_order(
        text, "apply OpObserveHook on torch.exp", r"torch\.exp    forward_id: \d+", r"\S+ .*torch\.exp\(x\)"
    )
    in_order(text, "apply OpTimeMeasureHook on torch.exp", r"op elasped info saved to \S+\.csv")
    facts = [table for table in tables(text) if table.columns == FACTS]
    assert [table.names for table in facts] == [["torch.exp inputs", "torch.exp outputs"]] * 2
    with_rows(text, ("name", "forward_id", "forward_elasped", "unit"), "torch.exp")
    assert "torch.sin" not in text.replace("torch.sin(x)", "")
