"""Every usage block of the product documents for capture, time measurement and fallback, and what it prints.

The documents show a chip of their own; here the device is `dipu`. Verbose mode prints what they show.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from printed import CAPTURED, FACTS, SITE, STAMP, in_order, masked, tables, with_rows

import op_tools

pytestmark = pytest.mark.device

FOLDER = "op_tools_results/op_capture_results"
PID = os.getpid()


@pytest.fixture(autouse=True)
def verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")


def manual_rms_norm(my_input: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    variance = my_input.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return my_input * torch.rsqrt(variance + eps)


def saved(name: str, part: str) -> str:
    return rf"{FOLDER}/{re.escape(name)}/{PID}/\d+/{STAMP}/{part}\.pth saved"


def heading(name: str, source: str) -> str:
    return rf"{re.escape(name)}    forward_id:\d+/{STAMP}    {SITE}{re.escape(source)}"


class TestCapture:
    def code_snippet_to_capture(self) -> None:
        manual_rms_norm(torch.ones(1, 4, 8, dtype=torch.bfloat16, device="dipu", requires_grad=True))

    def usage1(self) -> None:
        capture = op_tools.OpCapture()
        capture.start()
        self.code_snippet_to_capture()
        capture.stop()

    def usage2(self) -> None:
        with op_tools.OpCapture():
            self.code_snippet_to_capture()

    def test_usage1_prints_lines_and_tables(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        text = capsys.readouterr().out
        source = "return my_input * torch.rsqrt(variance + eps)"
        for name in ("torch.Tensor.add", "torch.rsqrt", "torch.Tensor.mul"):
            lines = [f"apply OpCaptureHook on {name}", saved(name, "input"), saved(name, "output")]
            block = "\n".join([*lines, heading(name, source), r"\+-+.*"])
            assert re.search(rf"^{block}$", text, re.M), f"five lines on end for {name}"

    def test_the_table_of_a_call_with_a_number(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        name = "torch.Tensor.add"
        table = with_rows(
            capsys.readouterr().out,
            (*CAPTURED, "value"),
            f"{name} inputs[0]",
            f"{name} inputs[1]",
            f"{name} outputs",
        )
        row = table[f"{name} inputs[0]"]
        shown = [row[column] for column in CAPTURED[1:-1]]
        assert shown == ["dipu:0", "float32", "4", "(1, 4, 1)", "(4, 1, 1)", "True", "torch.strided"]
        assert int(row["data_ptr"]) > 0 and row["value"] == ""
        number = table[f"{name} inputs[1]"]
        assert number["value"] == "1e-05" and {number[column] for column in CAPTURED[1:]} == {""}
        assert "|            name            | device |" in table.lines[1], "cells are centred"

    def test_tables_of_calls_without_numbers(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        text = capsys.readouterr().out
        with_rows(text, CAPTURED, "torch.rsqrt inputs", "torch.rsqrt outputs")
        name = "torch.Tensor.mul"
        table = with_rows(text, CAPTURED, f"{name} inputs[0]", f"{name} inputs[1]", f"{name} outputs")
        assert [row["dtype"] for row in table.rows] == ["bfloat16", "float32", "float32"]

    def test_usage2_prints_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        first = capsys.readouterr().out
        self.usage2()
        assert masked(capsys.readouterr().out) == masked(first)

    def test_what_is_said_to_be_saved_is_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage2()
        files = re.findall(r"^(\S+) saved$", capsys.readouterr().out, re.M)
        assert len(files) >= 10
        for file in files:
            assert set(torch.load(file, weights_only=True)) >= {"args", "kwargs"}
            assert Path(f"{file}.json").exists()

    def sorting(self) -> torch.Tensor:
        x = torch.arange(200.0).reshape(10, 20).to("dipu").requires_grad_()
        e = x * 2 / 3
        sorted, _indices = e.sort()  # return torch.return_type.sort
        return sorted[:3].sum()

    def test_only_listed_operators(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OP_CAPTURE_LIST", "torch.Tensor.sort")
        with op_tools.OpCapture():
            self.sorting().backward()
        text = capsys.readouterr().out
        name = "torch.Tensor.sort"
        in_order(
            text, *(f"skip OpCaptureHook on torch.Tensor.{op}" for op in ("mul", "div")),
            f"apply OpCaptureHook on {name}", saved(name, "input"), saved(name, "output"),
            heading(name, "sorted, _indices = e.sort()  # return torch.return_type.sort"),
            *(f"skip OpCaptureHook on torch.Tensor.{op}" for op in ("__getitem__", "sum", "backward")),
            saved(name, "grad_inputs"), saved(name, "grad_outputs"), rf"{name} forward_id:\d+",
        )  # fmt: skip
        outputs = (f"{name} outputs [0][0]", f"{name} outputs [0][1]")
        forward = with_rows(text, CAPTURED, f"{name} inputs", *outputs)
        assert [row["dtype"] for row in forward.rows] == ["float32", "float32", "int64"]
        backward = with_rows(text, CAPTURED, f"{name} grad_output", f"{name} grad_inputs")
        assert {row["shape"] for row in backward.rows} == {"(10, 20)"}
        assert {line.split()[-1] for line in text.splitlines() if line.startswith("apply")} == {name}

    def test_all_but_listed_operators(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OP_CAPTURE_DISABLE_LIST", "torch.Tensor.add,torch.Tensor.sub")
        x = torch.ones(4, device="dipu")
        with op_tools.OpCapture():
            y = x.to(torch.float64) * 2
            z = ((y + 1) - 1) / 3
            z.sort()
            z.sum()
        expected = []
        for op in ("to", "mul", "add", "sub", "div", "sort", "sum"):
            name = f"torch.Tensor.{op}"
            if op in {"add", "sub"}:
                expected.append(f"skip OpCaptureHook on {name}")
            else:
                expected += [f"apply OpCaptureHook on {name}", saved(name, "input"), saved(name, "output")]
        text = capsys.readouterr().out
        in_order(text, *expected)
        assert "apply OpCaptureHook on torch.Tensor.add" not in text
        assert not Path(FOLDER, "torch.Tensor.sub").exists()


class TestTimeMeasure:
    def code_snippet_to_time_measure(self) -> None:
        src = torch.arange(4, device="dipu")
        src = src.expand(torch.Size([4]))
        src.max().int() + 1
        x = torch.ones(3, device="dipu", requires_grad=True)
        norm = x.sum().unsqueeze(0) ** 2.0
        norm.backward()

    def usage1(self) -> None:
        with op_tools.OpTimeMeasure():
            self.code_snippet_to_time_measure()

    def usage2(self) -> None:
        timemeasure = op_tools.OpTimeMeasure()
        timemeasure.start()
        self.code_snippet_to_time_measure()
        timemeasure.end()

    def test_usage1_prints_values_and_times(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        text = capsys.readouterr().out
        name = "torch.Tensor.expand"
        in_order(text, rf"{SITE}src = src\.expand\(torch\.Size\(\[4\]\)\)", r"\+-.*")
        facts = with_rows(
            text, (*FACTS, "value"), f"{name} inputs[0]", f"{name} inputs[1]", f"{name} outputs"
        )
        assert facts[f"{name} inputs[1]"]["value"] == "torch.Size([4])"
        shown = [facts[f"{name} inputs[0]"][column] for column in FACTS[1:-1]]
        assert shown == ["(4,)", "(1,)", "4", "int64", "dipu:0", "False", "torch.strided"]
        with_rows(text, FACTS, "torch.Tensor.max inputs", "torch.Tensor.max outputs")
        power = "torch.Tensor.__pow__"
        with_rows(text, (*FACTS, "value"), f"{power} inputs[0]", f"{power} inputs[1]", f"{power} outputs")
        for op in ("expand", "max", "unsqueeze", "__pow__"):
            times = with_rows(text, ("name", "forward_id", "forward_elasped", "unit"), f"torch.Tensor.{op}")
            assert re.fullmatch(r"\d+\.\d{8}", times.rows[0]["forward_elasped"])
            assert times.rows[0]["unit"] == "ms" and int(times.rows[0]["forward_id"]) > 0

    def test_usage1_prints_backward(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        text = capsys.readouterr().out
        name = "torch.Tensor.sum"
        table = with_rows(text, FACTS, f"{name} grad_outputs [0][0]", f"{name} grad_inputs [0][0]")
        assert table[f"{name} grad_inputs [0][0]"]["stride"] == "(0,)"
        times = with_rows(text, ("name", "forward_id", "backward_elasped", "unit"), name)
        assert float(times.rows[0]["backward_elasped"]) > 0

    def test_the_file_has_the_columns_that_scripts_read(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage2()
        line = capsys.readouterr().out.splitlines()[-1]
        pattern = rf"op elasped info saved to (op_tools_results/op_time_measure_result/op_elasped_info_pid{PID}_{STAMP}\.csv)"
        match = re.fullmatch(pattern, line)
        assert match is not None, line
        header = Path(match[1]).read_text().splitlines()[0]
        assert header.startswith(
            "name,forward_id,forward_elasped,backward_elasped,unit,input,output,grad_inputs,grad_outputs"
        )

    def test_usage2_prints_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.usage1()
        first = [table.columns for table in tables(capsys.readouterr().out)]
        self.usage2()
        second = capsys.readouterr().out
        # The last two tables are the summary: the order of its rows follows the times.
        assert [table.columns for table in tables(second)] == first and len(first) > 10


class TestFallback:
    def code_snippet_op_to_be_fallbacked(self) -> torch.Tensor:
        params = torch.ones(4, 8, dtype=torch.bfloat16, device="dipu", requires_grad=True)
        output = F.linear(torch.ones(2, 8, dtype=torch.bfloat16, device="dipu"), params, None)
        assert output.shape == (2, 4) and not output.is_complex() and output.numel() == 8
        named_std = params.to(dtype=torch.float64).std()
        torch.exp(named_std).item()
        return output

    def test_usage1_falls_back_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        with op_tools.OpFallback():
            self.code_snippet_op_to_be_fallbacked()
        text = capsys.readouterr().out
        source = re.escape("named_std = params.to(dtype=torch.float64).std()")
        heading = rf"torch\.Tensor\.to    forward_id: \d+\n{SITE}{source}"
        assert re.search(rf"^apply OpFallbackHook on torch\.Tensor\.to\n\n\n\n{heading}\n\+-", text, re.M)
        name = "torch.Tensor.to"
        rows = (
            "input(device)",
            "input(device) dtype",
            "input(cpu)",
            "input(cpu) dtype",
            "output(device)",
            "output(cpu)",
        )
        table = with_rows(text, (*FACTS, "value"), *(f"{name} {row}" for row in rows))
        assert [row["device"] for row in table.rows] == ["dipu:0", "", "cpu", "", "dipu:0", "cpu"]
        assert table[f"{name} input(cpu) dtype"]["value"] == "torch.float64"
        sides = ("input(device)", "input(cpu)", "output(device)", "output(cpu)")
        with_rows(text, FACTS, *(f"torch.Tensor.std {side}" for side in sides))
        with_rows(text, FACTS, *(f"torch.exp {side}" for side in sides))
        item = with_rows(text, (*FACTS, "value"), *(f"torch.Tensor.item {side}" for side in sides))
        assert item.rows[2]["value"] == item.rows[3]["value"] == "1.0"

    def test_usage2_prints_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        with op_tools.OpFallback():
            self.code_snippet_op_to_be_fallbacked()
        first = capsys.readouterr().out
        fallback = op_tools.OpFallback()
        fallback.start()
        self.code_snippet_op_to_be_fallbacked()
        fallback.end()
        assert masked(capsys.readouterr().out) == masked(first)

    def test_only_listed_operators(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OP_FALLBACK_LIST", "torch.nn.functional.linear")
        name = "torch.nn.functional.linear"
        with op_tools.OpFallback():
            self.code_snippet_op_to_be_fallbacked()
        text = capsys.readouterr().out
        in_order(
            text, f"apply OpFallbackHook on {name}", "skip OpFallbackHook on torch.Tensor.shape.__get__",
            *(f"skip OpFallbackHook on torch.Tensor.{op}" for op in ("is_complex", "numel", "to", "std")),
            "skip OpFallbackHook on torch.exp", "skip OpFallbackHook on torch.Tensor.item",
        )  # fmt: skip
        inputs = [f"{name} input({side})[{place}]" for side in ("device", "cpu") for place in range(3)]
        table = with_rows(text, (*FACTS, "value"), *inputs, f"{name} output(device)", f"{name} output(cpu)")
        assert table[f"{name} input(cpu)[2]"]["value"] == "None"
        assert len(tables(text)) == 1

    def test_all_but_listed_operators(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OP_FALLBACK_DISABLE_LIST", "torch.nn.functional.linear")
        with op_tools.OpFallback() as fallback:
            self.code_snippet_op_to_be_fallbacked()
        text = capsys.readouterr().out
        in_order(
            text, "skip OpFallbackHook on torch.nn.functional.linear",
            r"torch\.Tensor\.std    forward_id: \d+", rf"{SITE}named_std = params\.to.*",
        )  # fmt: skip
        assert "std" in "".join(fallback.ran) and "mm" not in "".join(fallback.ran)
