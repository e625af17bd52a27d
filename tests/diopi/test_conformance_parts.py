"""The parts of the conformance suite: guarded memory, references, own cases, selections, draws."""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from dicore.conformance.case_filter import SelectionError, functions_like
from dicore.conformance.cases import CaseSource
from diopi.cli import app, main
from diopi.conformance import samples
from diopi.conformance.buffers import GuardedBuffer, overlapping, read_made, span_of
from diopi.conformance.diopi_case import interface_functions
from diopi.conformance.own_source import CAP, OwnSource, dtypes_of, variations
from diopi.conformance.reference_run import NoReferenceError, ReferenceRun
from diopi.conformance.references.random import Drawn, draw
from diopi.library import Made
from diopi.table import load
from diopi.table.schema import Argument, Entry, Function
from op_tools.conformance import describe_value, worst_elements

pytestmark = pytest.mark.unit


class HostMemory:
    """Stands for a device: plain memory that a test can write to."""

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def allocate(self, nbytes: int) -> int:
        block = ctypes.create_string_buffer(nbytes)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, pointer: int) -> None:
        del self.blocks[pointer]

    def write(self, pointer: int, host_address: int, nbytes: int) -> None:
        ctypes.memmove(pointer, host_address, nbytes)

    def read(self, pointer: int, host_address: int, nbytes: int) -> None:
        ctypes.memmove(host_address, pointer, nbytes)


def _block(buffer: GuardedBuffer, memory: HostMemory) -> ctypes.Array[ctypes.c_char]:
    (block,) = memory.blocks.values()
    return block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex128])
@pytest.mark.parametrize("layout", samples.LAYOUTS)
def test_a_buffer_gives_back_the_values_of_any_layout(dtype: torch.dtype, layout: str) -> None:
    values = samples.Maker("diopiX", dtype, 3, layout)(2, 3, 4, 5)
    memory = HostMemory()
    buffer = GuardedBuffer(memory, values)  # type: ignore[arg-type]
    buffer.read()
    assert torch.equal(buffer.values(), values) and buffer.values().dtype == dtype
    assert buffer.fault("x", written=False) == buffer.fault("x", written=True) == ""
    buffer.free()
    assert not memory.blocks


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        (0, "wrote 1 byte in front of x"),
        (128 + 4 * 1 - 1, "wrote 1 byte in front of x"),
        (128 + 4 * 2, "wrote 1 byte between the elements of x"),
        (-1, "wrote 1 byte behind the end of x"),
        (-128, "wrote 1 byte behind the end of x"),
    ],
)
@pytest.mark.parametrize("written", [True, False])
def test_a_byte_changed_anywhere_around_is_seen(place: int, fault: str, written: bool) -> None:
    values = torch.arange(9.0)[1:8:2]  # offset 1, every second element
    memory = HostMemory()
    buffer = GuardedBuffer(memory, values)  # type: ignore[arg-type]
    _block(buffer, memory)[place] = b"\x01"
    buffer.read()
    assert buffer.fault("x", written=written) == fault


def test_a_changed_element_is_a_fault_of_an_input_only() -> None:
    memory = HostMemory()
    buffer = GuardedBuffer(memory, torch.ones(3))  # type: ignore[arg-type]
    _block(buffer, memory)[128 + 4] = b"\x07"
    buffer.read()
    assert buffer.fault("x", written=True) == ""
    assert buffer.fault("x", written=False) == "changed 1 element of x, which is only read"


def test_a_tensor_that_was_made_in_host_memory_is_read_there() -> None:
    values = torch.arange(6.0).view(2, 3)
    made = Made((3, 2), (1, 3), "float32", values.data_ptr(), on_host=True)
    assert torch.equal(read_made(None, made), values.t())  # type: ignore[arg-type]
    memory = HostMemory()
    GuardedBuffer(memory, values)  # type: ignore[arg-type]
    (block,) = memory.blocks
    on_device = Made((6,), (1,), "float32", block + 128)
    assert read_made(memory, on_device).tolist() == list(range(6))  # type: ignore[arg-type]


def test_bytes_that_are_no_booleans_are_a_fault() -> None:
    memory = HostMemory()
    buffer = GuardedBuffer(memory, torch.zeros(4, dtype=torch.bool), poison=0xFF)  # type: ignore[arg-type]
    _block(buffer, memory)[128:131] = b"\x00\x01\x02"
    buffer.read()
    assert buffer.fault("x", written=True) == "2 bytes of x are neither 0 nor 1, as booleans are"


@pytest.mark.parametrize("poison", [0x7F, 0xFF])
def test_booleans_that_nobody_wrote_are_a_fault(poison: int) -> None:
    memory = HostMemory()
    buffer = GuardedBuffer(memory, torch.zeros(4, dtype=torch.bool), poison)  # type: ignore[arg-type]
    buffer.read()
    assert buffer.fault("x", written=True) == "left 4 of 4 elements of x unwritten"
    _block(buffer, memory)[128:131] = b"\x00\x01\x00"
    buffer.read()
    assert buffer.fault("x", written=True) == "left 1 of 4 elements of x unwritten"
    _block(buffer, memory)[131] = b"\x01"
    buffer.read()
    assert buffer.fault("x", written=True) == ""
    assert buffer.values().tolist() == [False, True, False, True]


def test_spans_and_overlaps() -> None:
    assert span_of((3, 4), (10, 2)) == 27 and span_of((0, 4), (4, 1)) == 0 and span_of((), ()) == 1
    assert overlapping((3, 4), (0, 1)) and overlapping((3, 4), (2, 1)) and not overlapping((3, 4), (4, 1))
    assert not overlapping((1, 4), (0, 1)) and not overlapping((4, 3), (1, 4))


# ---- references ----


def _entry(reference: str, *arguments: tuple[str, str], **more: object) -> Entry:
    names = tuple(Argument(ctype, name) for ctype, name in arguments)
    function = Function("functions.h", "diopiMade", "diopiError_t", False, False, names)
    return Entry(function, "test", "elementwise", ("fp",), "ulp", reference=reference, **more)  # type: ignore[arg-type]


OUT, IN = "diopiTensorHandle_t", "diopiConstTensorHandle_t"


def test_truth_is_float64_and_own_has_the_dtype_of_the_output() -> None:
    entry = _entry("input / 3", (OUT, "out"), (IN, "input"))
    x = torch.tensor([1.0, 2.0])
    run = ReferenceRun(entry, {"input": x, "out": torch.empty(2, dtype=torch.bfloat16)})
    assert torch.equal(run.own()[0], (x / 3).bfloat16())
    truth = run.truth()
    assert truth is not None and torch.equal(truth[0], x.double() / 3)
    moved = run.perturbed(1)
    assert moved is not None and 0 < float((moved[0] - truth[0]).abs().max()) < 1e-6
    variant = run.variant(5)
    assert (
        variant is not None and variant[0][0].dtype == torch.bfloat16 and variant[1][0].dtype == torch.float64
    )


def test_integers_are_raised_where_floats_come_out() -> None:
    entry = _entry("input / 3", (OUT, "out"), (IN, "input"))
    truth = ReferenceRun(entry, {"input": torch.tensor([1, 2])}).truth()
    assert truth is not None and truth[0].tolist() == [1 / 3, 2 / 3]


def test_halves_without_a_kernel_are_computed_in_float32_and_rounded() -> None:
    entry = _entry("torch.linalg.inv(input)", (OUT, "out"), (IN, "input"))
    x = torch.tensor([[3.0]], dtype=torch.float16)
    own = ReferenceRun(entry, {"input": x}).own()[0]
    assert own.dtype == torch.float16 and own.item() == torch.tensor(1 / 3).half().item()


def test_an_update_is_cast_to_its_argument_and_the_case_is_not_touched() -> None:
    entry = _entry("input.add_(other)", (OUT, "input"), (IN, "other"), roles={"input": "update"})
    x = torch.ones(2, dtype=torch.float16)
    run = ReferenceRun(entry, {"input": x, "other": torch.ones(2)})
    assert run.own()[0].dtype == torch.float16 and run.own()[0].tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]


def test_no_way_of_computing_a_reference_changes_the_case() -> None:
    """The first try in float16 has no kernel; the second, in float32, writes into what needs no raising."""
    entry = _entry(
        "input.add_(torch.linalg.inv(other)[0])",
        (OUT, "input"),
        (IN, "other"),
        roles={"input": "update"},
    )
    x, other = torch.ones(1), torch.tensor([[2.0]], dtype=torch.float16)
    run = ReferenceRun(entry, {"input": x, "other": other})
    assert run.own()[0].tolist() == [1.5] and x.tolist() == [1.0]
    given = {"input": x, "other": other.float()}
    assert run.evaluate((), given, None, upcast=False)[0].tolist() == [1.5] and x.tolist() == [1.0]


def test_lists_are_flat_and_open_values_are_left_out() -> None:
    entry = _entry(
        "[input, input + 1], None",
        (f"{OUT}*", "outs"),
        (OUT, "workspace"),
        (IN, "input"),
        roles={"outs": "outs"},
    )
    run = ReferenceRun(entry, {"input": torch.zeros(2)})
    assert [value.tolist() for value in run.own()] == [[0.0, 0.0], [1.0, 1.0]]
    assert [slot.title for slot in run.slots] == ["outs[0]", "outs[1]"]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("torch.bitwise_not(input)", True), ("input.reshape(7)", False), ("input.nonsense()", False)],
)
def test_what_torch_does_not_compute_is_told_from_a_mistake(reference: str, expected: bool) -> None:
    entry = _entry(reference, (OUT, "out"), (IN, "input"))
    with pytest.raises(NoReferenceError) as raised:
        ReferenceRun(entry, {"input": torch.ones(2, 2)}).own()
    assert raised.value.expected is expected


def test_an_output_of_another_shape_is_a_mistake_of_the_case() -> None:
    entry = _entry("input + 1", (OUT, "out"), (IN, "input"))
    with pytest.raises(NoReferenceError, match=r"the shape \(3,\), the reference has \(2,\)"):
        ReferenceRun(entry, {"input": torch.ones(2), "out": torch.empty(3)}).own()


def test_draws_have_shapes_and_know_whether_they_vary() -> None:
    dropped, mask = draw("native_dropout", torch.ones(50), 0.5, True)
    assert isinstance(dropped, Drawn) and (dropped.index, mask.index) == (0, 1)
    assert mask.value.dtype == torch.bool and dropped.varies
    x = torch.zeros(4)
    assert not draw("bernoulli_", x, 0.0).varies and draw("uniform_", x, 1.0, 2.0).varies
    assert x.tolist() == [0.0] * 4
    state = torch.get_rng_state()
    draw("randperm", 9)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(LookupError, match="no_such"):
        draw("no_such", x)


# ---- own cases ----


def test_own_cases_are_the_same_every_time_and_meet_all_dtypes_and_layouts() -> None:
    source = OwnSource()
    assert isinstance(source, CaseSource)
    first, second = (list(source.cases("diopiAdd")) for _ in range(2))
    assert [c.id for c in first] == [f"own:diopiAdd:{n}" for n in range(len(first))]
    assert 20 < len(first) <= CAP + 15
    for one, other in zip(first, second, strict=True):
        assert describe_value(one.arguments["input"]) == describe_value(other.arguments["input"])
        assert torch.equal(one.arguments["input"], other.arguments["input"]) or "special" in one.label
    assert {c.dtype for c in first} == set(dtypes_of(load().entries["diopiAdd"]))
    labels = {c.label for c in first}
    assert {"strided", "offset", "transposed", "expanded", "strided output", "special values"} <= labels
    strided = next(c for c in first if c.label == "strided output")
    assert not strided.arguments["out"].is_contiguous()
    assert [c.arguments["input"].sum() for c in first] != [
        c.arguments["input"].sum() for c in OwnSource(7).cases("diopiAdd")
    ]


def test_aliased_cases_give_the_updated_tensor_twice() -> None:
    aliased = [c.arguments for c in OwnSource().cases("diopiMulInp") if "aliased" in c.label]
    assert len(aliased) >= 2 and all(a["input"] is a["other"] for a in aliased)
    assert not any("aliased" in c.label for c in OwnSource().cases("diopiMul"))


def test_variations_start_with_the_main_dtype_and_sums_get_no_huge_numbers() -> None:
    table = load()
    assert variations(table.entries["diopiExp"])[0].dtype == "float32"
    assert variations(table.entries["diopiBitwiseAnd"])[0].dtype == "int64"
    total = table.entries["diopiSum"]
    assert total.tolerance == "accumulate" and not any(v.values == "huge" for v in variations(total))
    assert any(v.values == "huge" for v in variations(replace(total, tolerance="ulp")))


@pytest.mark.parametrize(
    ("dtype", "other", "expected"),
    [
        (torch.bool, (3, 2), True),  # the table does not name booleans for a product
        (torch.float32, (2, 3), False),  # the shapes do not fit: a mistake of the case, not of torch
    ],
)
def test_a_reference_may_fail_only_for_dtypes_that_torch_or_the_table_does_not_know(
    dtype: torch.dtype, other: tuple[int, int], expected: bool
) -> None:
    entry = load().entries["diopiMm"]
    arguments = {"input": torch.ones(2, 3, dtype=dtype), "mat2": torch.ones(other, dtype=dtype)}
    with pytest.raises(NoReferenceError) as error:
        ReferenceRun(entry, arguments, str(dtype).removeprefix("torch.")).own()
    assert error.value.expected is expected


def test_words_of_torch_that_name_no_dtype_are_no_excuse() -> None:
    run = ReferenceRun(load().entries["diopiMm"], {}, "float32")
    for text, expected in (
        ("this layout is not supported", False),
        ("\"mm_cpu\" not implemented for 'Half'", True),
    ):
        assert run._may_be_refused(RuntimeError(text)) is expected
    assert run._may_be_refused(NotImplementedError())


# ---- selection ----


def test_functions_are_found_by_name_pattern_and_expression() -> None:
    known = interface_functions(load())
    assert len(known) == 423
    assert functions_like(["diopiAdd"], known) == {"diopiAdd"}
    assert {"diopiConvolution2d", "diopiConvolution2dBackward"} <= functions_like(["diopiConv*"], known)
    assert functions_like(["diopi(Add|Sub)"], known) == {"diopiAdd", "diopiSub"}
    with pytest.raises(SelectionError, match=r"diopiAddd.*near are diopiAdd"):
        functions_like(["diopiAddd"], known)


def test_worst_elements_come_first_and_nan_agrees_with_nan() -> None:
    expected = torch.tensor([[1.0, math.nan, 3.0], [4.0, 5.0, math.inf]])
    got = torch.tensor([[1.0, math.nan, 3.5], [math.nan, 5.25, math.inf]])
    worst = worst_elements(got, expected)
    assert [(w.index, w.expected, w.got) for w in worst] == [
        ([1, 0], "4", "nan"), ([0, 2], "3", "3.5"), ([1, 1], "5", "5.25")
    ]  # fmt: skip


# ---- the program ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--library", "x.so", "--vendor", "host"], "not both"),
        (["--case", "diopiAdd"], "is not the id of a case"),
        (["--case", "own:diopiadd:3"], "has no group 'diopiadd'; near are diopiAdd"),
        (
            ["--case", "own:diopiAdd:999"],
            "there is no case own:diopiAdd:999: own:diopiAdd has numbers from 0 to ",
        ),
        (
            ["--case", "models:brt:0"],
            "there is no case models:brt:0: no model is called 'brt'; did you mean bert",
        ),
        (["--case", "file:a::b:0"], "give the file with --cases"),
        (["--cases", "mine.py", "--source", "own"], "--cases takes the place of --source"),
        (
            ["--vendor", "hots"],
            "--vendor hots: no such vendor is installed; installed: host; did you mean host",
        ),
        (["--vendor", "./libx.so"], "--vendor ./libx.so: this is a path; give a file with --library"),
        (["--functions", "diopiadd"], "no function of the interface is called 'diopiadd'; near are diopiAdd"),
        (["--adaptor", "no_such_rules.yaml"], "no_such_rules.yaml"),
        (["--json", "/no/such/folder/x.json"], "give a file in a folder that exists"),
    ],
)
def test_wrong_usage_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["conformance", *words])
    said = capsys.readouterr()
    assert ended.value.code == 2 and message in said.err and not said.out


def test_help_says_what_is_taken_without_a_vendor_and_shows_brackets() -> None:
    boxed = CliRunner().invoke(app, ["conformance", "--help"]).output
    told = " ".join(boxed.replace("│", " ").split())
    assert "TOML with [[skip]] rules" in told and "Default: DIPU_DEVICE, else the best one installed." in told


def test_an_unknown_aten_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["table", "aten::addmmm"])
    assert ended.value.code == 2 and "'addmmm'; near are addmm" in capsys.readouterr().err


def test_the_table_command_shows_an_entry() -> None:
    answer = CliRunner().invoke(app, ["table", "add.Tensor"])
    assert answer.exit_code == 0 and "diopiError_t diopiAdd(" in answer.output
    assert "reference   " in answer.output and "input: in" in answer.output
    assert "  ATen        add.Tensor, add.out\n    if        not is_bool(alpha)\n" in answer.output
    for name in ("mm", "aten::mm", "aten::mm.out", "torch.ops.aten.mm.default"):
        assert "diopiError_t diopiMm(" in CliRunner().invoke(app, ["table", name]).output
    every = CliRunner().invoke(app, ["table", "aten::add"]).output
    assert "diopiAdd(" in every and "diopiAddScalar(" in every and "if        other is a number" in every
    listed = CliRunner().invoke(app, ["table", "--category", "random"])
    assert "diopiUniformInp" in listed.output and "diopiAdd " not in listed.output
    assert json.dumps(CliRunner().invoke(app, ["table", "diopiAdd", "--category", "random"]).exit_code) == "5"
