"""Rules in front of a chip that knows little (narrow_vendor.c), and in front of the simulated one."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import fresh

from diopi.adaptor import COMPOSITES, binding
from diopi.conformance.judging import check
from diopi.conformance.own_source import CAP, OwnSource
from diopi.library import Library, LibraryError, Tensor
from diopi.table import load
from diopi.vendors.host import VENDOR

FOLDER = Path(__file__).parent
NARROW = "(int64)->int32, (float64)->float32"
ALL = f"- common_config:\n    dtype: {NARROW}\n    contiguous: true\n"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens the narrow chip with rules (or none), and takes them away after the test."""
    libraries: list[Library] = []

    def open_with(rules: str | None, *flags: str) -> Library:
        target = tmp_path / "libnarrow.so"
        command = ["gcc", "-std=gnu11", "-shared", "-fPIC", f"-I{FOLDER.parents[1] / 'include'}", *flags]
        subprocess.run([*command, "-o", str(target), str(FOLDER / "narrow_vendor.c")], check=True)
        file = tmp_path / "convert_config.yaml"
        file.write_text(rules or "")
        libraries.append(Library.open(target, adaptor=file if rules else None))
        return libraries[-1]

    yield open_with
    for library in libraries:
        if library.adaptor:
            library.adaptor.close()


def _handle(tensor: torch.Tensor) -> Tensor:
    """The narrow chip works in host memory, so a tensor of torch can be handed over as it is."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Tensor(tensor.data_ptr(), tensor.shape, tensor.stride(), dtype)


def _call(library: Library, name: str, **arguments: Any) -> Any:
    def handed(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [_handle(item) for item in value]
        return _handle(value) if isinstance(value, torch.Tensor) else value

    return library.call(name, {key: handed(value) for key, value in arguments.items()})


def _add(library: Library, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.full_like(a, 99) if out is None else out
    answer = _call(library, "diopiAdd", out=out, input=a, other=b, alpha=2)
    assert answer.ok, answer
    return out


@fresh
def test_without_rules_the_chip_refuses(opened: Any) -> None:
    library = opened(None)
    x = torch.arange(4)
    answer = _call(library, "diopiAdd", out=torch.empty_like(x), input=x, other=x, alpha=1)
    assert answer.status == "diopiDtypeNotSupported"
    assert library.adaptor is None


@fresh
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.int32, torch.float32])
def test_with_rules_every_form_of_tensor_is_right(opened: Any, dtype: torch.dtype) -> None:
    library = opened(ALL)
    x, y = torch.arange(12).to(dtype) - 5, torch.arange(12).to(dtype) * 3
    assert _add(library, x, y).equal(x + 2 * y)
    turned = x.view(3, 4).t()
    assert _add(library, turned, y.view(4, 3)).equal(turned + 2 * y.view(4, 3))
    spread = torch.full((3, 8), -7, dtype=dtype)[:, ::2]  # gaps in what is written stay as they are
    _add(library, x.view(3, 4), y.view(3, 4), out=spread)
    assert spread.equal((x + 2 * y).view(3, 4)) and spread._base[:, 1::2].eq(-7).all()  # type: ignore[union-attr]
    repeated = x[:1].expand(12)
    assert _add(library, repeated, y).equal(-5 + 2 * y)
    assert _add(library, x[2], y[3]).equal(x[2] + 2 * y[3])
    assert _add(library, x[:0], y[:0]).shape == (0,)


@fresh
def test_values_that_do_not_fit_are_errors(opened: Any) -> None:
    library = opened(ALL)
    x = torch.tensor([1, 2, 3_000_000_000, 4])
    out = torch.full_like(x, 99)
    answer = _call(library, "diopiAdd", out=out, input=x, other=torch.ones_like(x), alpha=1)
    assert answer.status == "diopiErrorOccurred"
    assert answer.error == (
        "diopiAdd: input: element 2 is 3000000000, which int32 cannot hold (-2147483648 to 2147483647)"
    )
    assert out.eq(99).all()
    edge = torch.tensor([2**31 - 1, -(2**31)])
    zero = torch.zeros_like(edge)
    assert _add(library, edge, zero).equal(edge)
    assert not _call(library, "diopiAdd", out=zero, input=edge + 1, other=zero, alpha=1).ok
    huge = torch.tensor([1.0, 1e300], dtype=torch.float64)
    answer = _call(library, "diopiAdd", out=huge.clone(), input=huge, other=huge, alpha=1)
    assert "element 1 is 1.0000000000000001e+300, which float32 cannot hold" in answer.error
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.1], dtype=torch.float64)
    got = _add(library, special, torch.zeros(4, dtype=torch.float64))
    assert got[:2].equal(special[:2]) and got[2].isnan() and got[3] == special[3].float().double() != 0.1


@fresh
def test_a_number_that_does_not_fit_is_an_error(opened: Any) -> None:
    library = opened(ALL)
    x = torch.arange(4)
    answer = _call(library, "diopiMulScalar", out=torch.empty_like(x), input=x, other=2**40)
    assert answer.code == 1 and "diopiMulScalar: other: the number 1099511627776 does not fit" in answer.error
    wide = torch.arange(4.0, dtype=torch.float64)
    assert not _call(library, "diopiMulScalar", out=wide.clone(), input=wide, other=1e39).ok
    assert not _call(library, "diopiMulScalar", out=x.int(), input=x, other=2**40).ok
    small = x.int()  # nothing is converted here: the chip's own business
    assert _call(library, "diopiMulScalar", out=small.clone(), input=small, other=2**40).ok


@fresh
def test_errors_of_the_chip_are_the_chips(opened: Any) -> None:
    library = opened("- diopiAdd:\n    dtype: (int64)->int32\n")
    x = torch.arange(8)[::2]  # not contiguous, and no rule about it: the copy has no gaps
    assert _add(library, x, x).equal(3 * x)
    other = torch.arange(8.0)[::2]
    assert not _call(library, "diopiAdd", out=x, input=x + 2**40, other=x, alpha=1).ok
    answer = _call(library, "diopiAdd", out=torch.empty(4), input=other, other=other, alpha=1)
    assert answer.error == "a tensor is not contiguous"  # not the adaptor's older text


@fresh
def test_what_is_updated_is_converted_both_ways(opened: Any) -> None:
    library = opened(ALL)
    x = torch.arange(8)[::2]
    assert _call(library, "diopiAddInp", input=x, other=torch.tensor([1, 2, 3, 4]), alpha=10).ok
    assert x.tolist() == [10, 22, 34, 46]
    assert _call(library, "diopiAddInp", input=x, other=x, alpha=1).ok
    assert x.tolist() == [20, 44, 68, 92]


@fresh
def test_what_is_overwritten_may_hold_anything(opened: Any) -> None:
    library = opened(ALL)
    x = torch.full((4,), 2**40)  # as memory that was never written
    assert _call(library, "diopiFill", input=x[::2], value=7).ok
    assert x.tolist() == [7, 2**40, 7, 2**40]
    assert not _call(library, "diopiFill", input=x, value=2**40).ok


@fresh
def test_lists_and_tensors_the_chip_makes(opened: Any) -> None:
    library = opened(ALL)
    out = torch.zeros(5, dtype=torch.int64)
    parts = [torch.tensor([5, 6]), torch.tensor([7, 8, 9])]
    assert _call(library, "diopiCat", out=out, tensors=parts, num_inputs=2, dim=0).ok
    assert out.tolist() == [5, 6, 7, 8, 9]
    for dtype in (torch.float32, torch.float64):
        answer = _call(library, "diopiNonzero", input=torch.tensor([0, 3, 0, 4], dtype=dtype))
        made = answer.made["out"]
        assert (made.dtype, made.shape) == ("int64", (2, 1))
        assert (ctypes.c_int64 * 2).from_address(made.pointer)[:] == [1, 3]
        answer.close()


@fresh
def test_an_absent_tensor_stays_absent(opened: Any) -> None:
    library = opened(ALL)
    out, weight = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    _call(library, "diopiLayerNorm", out=out, input=weight, weight=weight, normalized_shape=[1], eps=0.1)
    assert out.tolist() == [10]


@fresh
def test_layout_of_all_tensors(opened: Any) -> None:
    library = opened("- common_config:\n    layout: NHWC\n")
    x = torch.randn(2, 3, 4, 5)
    out = torch.empty_like(x)
    assert _call(library, "diopiRelu", out=out, input=x).ok
    assert out.equal(x.relu())
    last = x.contiguous(memory_format=torch.channels_last)
    before = library.adaptor.costs()[0].conversions
    assert _call(library, "diopiRelu", out=torch.empty_like(last), input=last).ok
    assert library.adaptor.costs()[0].conversions == before == 2  # it has that layout already
    assert _call(library, "diopiRelu", out=torch.empty(7), input=torch.randn(7)).ok  # not an image


@fresh
def test_layout_of_one_tensor(opened: Any) -> None:
    library = opened("- diopiNeg:\n    layout: NCHW, input(NHWC)\n")
    x = torch.randn(2, 3, 4, 5)
    for given, target in ((x, torch.empty_like(x)), (x, torch.empty(5, 4, 3, 2).permute(3, 2, 1, 0))):
        assert _call(library, "diopiNeg", out=target, input=given).ok
        assert target.equal(-x)


@fresh
def test_contiguous_by_name(opened: Any) -> None:
    library = opened("- diopiAdd:\n    contiguous: input\n")
    x, spread = torch.arange(4.0), torch.arange(8.0)[::2]
    assert _add(library, spread, x, out=torch.empty(4)).equal(spread + 2 * x)
    answer = _call(library, "diopiAdd", out=torch.empty(4), input=x, other=spread, alpha=1)
    assert answer.error == "a tensor is not contiguous"


@fresh
def test_a_rule_for_one_tensor_beats_the_one_for_all(opened: Any) -> None:
    library = opened(
        "- common_config:\n    dtype: (int64)->int32\n"
        "- diopiAdd:\n    dtype: (float64)->float32\n    tensor_dtype:\n        other: (int64)->int64\n"
    )
    x = torch.arange(3)
    answer = _call(library, "diopiAdd", out=x.clone(), input=x, other=x, alpha=1)
    assert answer.status == "diopiDtypeNotSupported"  # `other` stays int64
    assert _add(library, x, x.int()).equal(3 * x)
    assert _add(library, x.double(), x.double()).equal(3.0 * x)


@fresh
def test_a_missing_operator_is_composed(opened: Any) -> None:
    library = opened(ALL + "    supportComposite: true\n")
    a, b, c = torch.randn(3, 5).double(), torch.randn(5, 4).double(), torch.randn(3, 4).double()
    out = torch.empty_like(c)
    assert _call(library, "diopiAddmm", out=out, input=c, mat1=a, mat2=b, beta=0.5, alpha=2.0).ok
    torch.testing.assert_close(out, torch.addmm(c, a, b, beta=0.5, alpha=2), rtol=1e-5, atol=1e-5)
    lost = torch.full_like(c, math.nan)  # beta 0: not even NaN counts
    assert _call(library, "diopiAddmm", out=out, input=lost, mat1=a, mat2=b, beta=0, alpha=1).ok
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)
    x, y, z = torch.tensor([5, 6]), torch.tensor([2, 3]), torch.tensor([10, 20])
    total = torch.empty_like(x)
    assert _call(library, "diopiAddcmul", out=total, input=x, tensor1=y, tensor2=z, value=3).ok
    assert total.tolist() == [65, 186]
    costs = {cost.name: cost for cost in library.adaptor.costs()}
    assert costs["diopiAddmm"].composed == costs["diopiAddmm"].calls == 2
    assert costs["diopiMm"].calls == 2 and costs["diopiMm"].conversions == 6
    assert not library.has("diopiSilu")  # its part diopiSigmoid is missing too


@fresh
def test_composites_need_the_rule(opened: Any) -> None:
    library = opened(ALL)
    answer = _call(library, "diopiAddcmul", out=torch.ones(1), input=torch.ones(1), value=1)
    assert answer.status == "diopiNoImplement"


@fresh
@pytest.mark.parametrize("name", COMPOSITES)
def test_every_composite_passes_conformance(name: str, tmp_path: Path) -> None:
    """The simulated chip without the operator itself: what its parts give is judged like an operator of its own.

    All but huge values: between two steps there is no fused operation, so a step may overflow where the whole does not.
    """
    rules = tmp_path / "convert_config.yaml"
    rules.write_text(f"- {name}:\n    supportComposite: true\n")
    library = Library.open(VENDOR.library, adaptor=rules)
    adaptor = library.adaptor
    assert adaptor is not None
    dlsym = ctypes.CDLL(None).dlsym
    dlsym.restype, dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    def without(owner: int, asked: bytes) -> Any:
        return None if asked.decode() == name else dlsym(owner, asked)

    loaded = binding._library()
    loaded.diopi_adaptor_set_lookup(ctypes.cast(without, ctypes.c_void_p), library._operators._handle)
    cases = [case for case in OwnSource(0, CAP).cases(name) if "huge" not in case.label]
    results = [check(library, load(), case) for case in cases]
    (cost,) = (cost for cost in adaptor.costs() if cost.name == name)
    adaptor.close()
    assert [f"{r.id}: {r.reason}" for r in results if r.status == "fail"] == []
    assert cost.composed == cost.calls > 30
    refused = {r.dtype for r in results if r.status == "unsupported"}
    assert refused <= {"complex64", "complex128"}


@fresh
def test_costs_are_counted(opened: Any) -> None:
    library = opened("- diopiAdd:\n    dtype: (int64)->int32\n")
    x = torch.arange(1000)
    _add(library, x, x)
    _add(library, x.int(), x.int())
    (cost,) = library.adaptor.costs()
    # x is converted once although it is given twice; the result is converted back
    assert (cost.name, cost.calls, cost.conversions, cost.on_host) == ("diopiAdd", 2, 2, 2)
    assert cost.bytes == 2 * 1000 * 12 and cost.nanoseconds > 0 and cost.call_nanoseconds > 0
    assert 0 < cost.share < 1
    _call(library, "diopiAdd", out=x, input=x + 2**33, other=x, alpha=1)
    assert library.adaptor.costs()[0].errors == 1


@fresh
def test_an_operator_without_rules_is_the_chips_own_function(opened: Any) -> None:
    library = opened("- diopiAdd:\n    dtype: (int64)->int32\n")
    own = ctypes.CDLL(str(library.path))
    for name, same in (("diopiMul", True), ("diopiAdd", False)):
        address = ctypes.cast(getattr(own, name), ctypes.c_void_p).value
        assert (library.adaptor.symbol(name) == address) is same
    assert library.adaptor.symbol("diopiSub") is None


@fresh
@pytest.mark.parametrize(("flag", "trusted"), [("-DGOOD_CASTS", True), ("-DBAD_CASTS", False)])
def test_the_chips_own_conversions_are_used_once_they_were_right(
    opened: Any, flag: str, trusted: bool
) -> None:
    library = opened(ALL, flag)
    x = torch.arange(100)
    for _ in range(5):
        assert _add(library, x, x).equal(3 * x)
    (cost,) = library.adaptor.costs()
    casts = ctypes.c_int.in_dll(library._operators, "casts").value
    # the arguments' range is checked on the host each time; results are widened by the chip once that was tried
    assert cost.conversions == 10
    assert (cost.on_host, casts) == ((6, 5) if trusted else (10, 1))


@fresh
def test_one_adaptor_in_a_process(opened: Any, tmp_path: Path) -> None:
    library = opened(ALL)
    with pytest.raises(LibraryError, match="has an adaptor in front of a library already"):
        Library.open(library.path, adaptor=tmp_path / "convert_config.yaml")


@fresh
def test_the_simulated_chip_in_float32(tmp_path: Path) -> None:
    rules = tmp_path / "convert_config.yaml"
    rules.write_text("- common_config:\n    dtype: (float64)->float32\n")
    library = Library.open(VENDOR.library, adaptor=rules)
    x = torch.linspace(0.1, 3, 7, dtype=torch.float64)
    pointers = [library.memory.allocate(56) for _ in range(2)]
    library.memory.write(pointers[0], x.data_ptr(), 56)
    source, target = (Tensor(pointer, [7], [1], "float64") for pointer in pointers)
    assert library.call("diopiExp", {"out": target, "input": source}).ok
    library.synchronize()
    got = torch.empty_like(x)
    library.memory.read(pointers[1], got.data_ptr(), 56)
    assert library.adaptor is not None
    library.adaptor.close()
    torch.testing.assert_close(got, x.exp(), rtol=1e-6, atol=0)
    assert got.equal(got.float().double())  # nothing finer than float32
    assert not got.equal(x.exp())
