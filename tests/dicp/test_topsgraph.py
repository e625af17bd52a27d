"""The backend `topsgraph`: programs for the builder compile, build what their rules say, and compute what eager PyTorch does."""

from __future__ import annotations

import logging
import subprocess

import pytest
import torch

from dicp.errors import InvalidGraphError
from dicp.vendor.TopsGraph.codegen import recording
from dicp.vendor.TopsGraph.codegen.dtypes import values_of
from dicp.vendor.TopsGraph.config import BACKEND
from dicp.vendor.TopsGraph.conversion import TopsConversions
from dicp.vendor.TopsGraph.stub import declaration

pytestmark = pytest.mark.unit


@pytest.fixture
def programs(monkeypatch):
    """The programs that are emitted, and interpreted."""
    monkeypatch.setenv("DICP_EMITTED_RUN", "interpreter")
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")
    found, emit = [], BACKEND.emit

    def emitted(graph):
        found.append(emit(graph))
        return found[-1]

    monkeypatch.setattr(BACKEND, "emit", emitted)
    return found


def compared(function, *inputs, **options):
    compiled = torch.compile(function, backend="topsgraph", **options)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return compiled


def mixed(x, y):
    parts = torch.cat([x, y], 1)[:, 1:3]
    return torch.relu(x * y + 0.5), parts, x.view(-1).bfloat16() * 0.3, x > y, torch.where(x > 0, x, -1.5)


def test_a_graph_becomes_a_program_that_computes_the_same(programs):
    compared(mixed, torch.randn(4, 3), torch.randn(4, 3))
    (program,) = programs
    text = program.texts()["topsgraph.cpp"]
    assert "builder::Op op0 = hlir_builder->CreateInput(type0);" in text
    assert "builder::Concatenate(std::vector<builder::Op>{op0, op1}, 1)" in text
    calls = [call.name for call in program.first.recorded.calls]
    assert {"Add", "Mul", "Select", "Convert", "Slice"} <= set(calls)


def test_symbolic_sizes_have_a_program_each(programs):
    compiled = compared(mixed, torch.randn(4, 3), torch.randn(4, 3), dynamic=True)
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), mixed(x, y))
    (program,) = programs
    assert len(program._programs) == 2


def test_outputs_are_memory_of_their_own(programs):
    x = torch.randn(3)
    result, other = torch.compile(lambda x: (x.clone(), x + 1), backend="topsgraph")(x)
    result.zero_()
    assert x.abs().sum() > 0 and torch.equal(other, x + 1)


def test_what_the_builder_has_no_type_for_runs_eagerly(programs):
    x = torch.randn(3, dtype=torch.float64)
    assert torch.equal(torch.compile(lambda x: x * 2, backend="topsgraph")(x), x * 2)
    assert not programs


def test_without_the_sdk_it_is_said_once(caplog):
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "dicp"):
        compared(lambda x: x * 2, x)
        compared(lambda x: x * 3, x)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the TopsRider SDK was not found" in caplog.text


def test_the_stub_is_what_the_table_says():
    assert declaration.HEADER.read_text(encoding="utf-8") == declaration.header()
    assert declaration.SOURCE.read_text(encoding="utf-8") == declaration.definitions()


def test_a_program_that_does_not_fit_the_builder_does_not_compile(programs):
    compared(lambda x: torch.exp(x) + 1, torch.randn(3))
    source = programs[0].first.source
    with pytest.raises(Exception, match="Expo"):
        recording.record(source.replace("builder::Exp(", "builder::Expo("))
    with pytest.raises(Exception, match="the compiler failed"):
        recording.record(source.replace("builder::Exp(op0)", "builder::Exp(op0, 3)"))


def test_a_program_that_breaks_a_rule_is_found(programs):
    compared(lambda x, y: x.view(6) * y, torch.randn(2, 3), torch.randn(6))
    source = programs[0].first.source

    def checked(text):
        recording.check(recording.read_recording(recording.record(text)))

    checked(source)
    assert "std::vector<int64_t>{6}" in source and "builder::Mul(" in source
    with pytest.raises(InvalidGraphError, match=r"op2 = Reshape: cannot reshape \[2, 3\] to \[7\]"):
        checked(source.replace("int64_t>{6}", "int64_t>{7}"))
    with pytest.raises(InvalidGraphError, match=r"its rule gives .*float16"):
        checked(
            source.replace(
                "std::vector<int64_t>{2, 3}, builder::PrimitiveType::F32()",
                "std::vector<int64_t>{2, 3}, builder::PrimitiveType::F16()",
            )
        )


def test_a_wrong_program_computes_something_else(programs):
    x, y = torch.randn(3), torch.randn(3)
    compared(lambda x, y: x - y, x, y)
    program = programs[0].first
    program.source = program.source.replace("builder::Sub(op0, op1)", "builder::Sub(op1, op0)")
    del program.recorded, program.types
    assert torch.equal(program.interpret([x, y])[0], y - x)


def test_constants_are_written_exactly():
    assert values_of(0.1, torch.float32) == ("float", ["0.10000000149011612f"])
    assert values_of(float("-inf"), torch.float32)[1] == ["-INFINITY"]
    assert values_of(1.0, torch.bfloat16) == ("uint16_t", ["0x3f80"])
    assert values_of([-(1 << 63), 1 << 40, 5], torch.int64)[1] == ["INT64_MIN", "INT64_C(1099511627776)", "5"]
    assert values_of(True, torch.bool) == ("bool", ["true"])


def test_constants_arrive_in_the_program(programs):
    x = torch.tensor([3.0, -2.0])
    compared(lambda x: (x.bfloat16() * 3, x.long() * (1 << 40), torch.where(x > 0, x, float("-inf"))), x)


def test_how_many_operators_are_converted():
    assert len(TopsConversions.conversions) >= 90


def test_the_recorder_has_no_warning(tmp_path):
    command = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-I",
        str(declaration.FOLDER),
    ]
    for name in ("recorder.cpp", "operators.cpp"):
        done = subprocess.run(
            [*command, str(declaration.FOLDER / name)], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
