"""Tensors that are not plain: no tool fails on them, and what the program computes is the same."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import op_tools
from op_tools.engine import ENGINE

D = "dipu"
TOOLS = [
    "OpTimeMeasure",
    "OpObserve",
    "OpOverflowCheck",
    "OpFallback",
    "OpDtypeCast",
    "OpAutoCompare",
    "OpCapture",
]


class Wrapped(torch.Tensor):
    """A tensor that stands for another one."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda v: v.inner if isinstance(v, Wrapped) else v, (args, kwargs or {}))
        return tree_map(lambda v: Wrapped(v) if isinstance(v, torch.Tensor) else v, func(*args, **kwargs))

    def plain(self) -> Any:
        return self.inner


class Named(torch.Tensor):
    """A subclass of the ordinary kind: the same memory, one more method."""

    def twice(self) -> Any:
        return self * 2


def _plain(value: Any) -> Any:
    if isinstance(value, Wrapped):
        value = value.inner
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [_plain(part) for part in value.unbind()]
        if value.device.type == "meta" or type(value).__name__ == "FakeTensor":
            return (str(value.device), tuple(value.shape), value.dtype)
        if value.is_quantized:
            value = value.dequantize()
        if value.layout != torch.strided:
            value = value.to_dense()
        if value.element_size() == 1 and value.is_floating_point():
            value = value.float()
        return (value.device.type, tuple(value.shape), value.dtype, value.tolist())
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def wrapper() -> Any:
    x = Wrapped(torch.arange(4.0, device=D).reshape(2, 2).requires_grad_())
    y = torch.mm(x, x).relu() + 1
    y.mul_(2)
    return [y, y.sum(), type(y).__name__]


def wrapper_with_gradients() -> Any:
    inner = torch.arange(4.0, device=D).reshape(2, 2)
    x = Wrapped(inner).requires_grad_()
    (torch.tanh(x) * 3).sum().backward()
    return [x.grad, type(x.grad).__name__]


def ordinary_subclass() -> Any:
    x = torch.arange(3.0, device=D).as_subclass(Named)
    y = x.twice() + 1
    return [y, type(y).__name__, torch.cat([x, y]), type(torch.cat([x, y])).__name__]


def empty() -> Any:
    x = torch.empty(0, 3, device=D, requires_grad=True)
    y = (x * 2) @ torch.ones(3, 2, device=D)
    y.sum().backward()
    return [
        y,
        x.grad,
        torch.cat([x, x]),
        x.reshape(3, 0),
        torch.ones(0, device=D).sum(),
        x.detach().clone().add_(1),
    ]


def zero_dim() -> Any:
    x = torch.tensor(2.0, device=D, requires_grad=True)
    y = x * 3 + torch.tensor(1.0)
    y.backward()
    return [y, x.grad, x.detach().add_(1), y.item(), x.detach().max(), torch.stack([x, y]).sort()]


def meta() -> Any:
    x = torch.ones(2, 3, device="meta", requires_grad=True)
    y = torch.nn.functional.linear(x, torch.ones(4, 3, device="meta")).relu()
    y.sum().backward()
    return [y, x.grad]


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.ones(2, 3, device=D)
        y = torch.nn.functional.linear(x, x).relu().sum(0)
    real = mode.from_tensor(torch.ones(2, device=D))
    return [_plain(y), _plain(real * 2), _plain(torch.add(real, real))]


def sparse() -> Any:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    s = x.to(D).to_sparse()
    weight = torch.ones(2, 2, device=D, requires_grad=True)
    y = torch.sparse.mm(s, weight)
    y.sum().backward()
    c = x.to_sparse_csr()
    return [y, weight.grad, s.coalesce().values(), (s + s), s * 2, c.to_dense(), c @ x]


def sparse_gradient() -> Any:
    table = torch.nn.Embedding(4, 2, sparse=True, device=D)
    with torch.no_grad():
        table.weight.copy_(torch.arange(8.0).reshape(4, 2))
    table(torch.tensor([1, 1, 3], device=D)).sum().backward()
    return [table.weight.grad]


def float8() -> Any:
    x = torch.tensor([1.0, -2.0, 3.5]).to(D).to(torch.float8_e4m3fn)
    return [
        x,
        x.to(torch.float32) * 2,
        x.clone(),
        torch.cat([x, x]),
        x.view(torch.uint8),
        x.float().to(torch.float8_e5m2),
    ]


def integers_bools_and_complex() -> Any:
    x = torch.arange(4, device=D)
    z = torch.complex(x.float(), x.float())
    return [
        x // 2,
        x % 3,
        x > 1,
        (x > 1) & (x < 3),
        x.uint8() if hasattr(x, "uint8") else x.byte(),
        z * z.conj(),
        z.abs(),
        z.real,
    ]


def quantized() -> Any:
    q = torch.quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]), 0.5, 0, torch.qint8)
    return [q.dequantize(), q.int_repr(), q.clone()]


def nested() -> Any:
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    strided = torch.nested.nested_tensor(parts)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return [[part * 1 for part in (strided * 2).unbind()], [part * 1 for part in (jagged + 1).unbind()]]


def views_of_all_kinds() -> Any:
    x = torch.arange(12.0, device=D).reshape(3, 4)
    e = x[0].expand(2, 4)
    o = x.as_strided((3, 3), (1, 1))
    x.t()[1:].fill_(5)
    return [
        e + 1,
        o.sum(0),
        x.flip(0),
        x.diagonal().mul_(2),
        x,
        x.unfold(1, 2, 1).sum(-1),
        x.permute(1, 0).contiguous(),
    ]


CASES = [wrapper, wrapper_with_gradients, ordinary_subclass, empty, zero_dim, meta, fake, sparse, sparse_gradient, float8,
         integers_bools_and_complex, quantized, nested, views_of_all_kinds]  # fmt: skip


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.filterwarnings("ignore")
def test_no_tool_minds(case: Any, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = [_plain(item) for item in case()]
        # The CPU is watched too: some of these exist only there.
        with getattr(op_tools, name)(device="cpu,dipu"):
            results = case()
        watched = [_plain(item) for item in results]
    assert repr(watched) == repr(bare)
    if (case, name) != (nested, "OpAutoCompare"):  # which says that it cannot copy them
        assert ENGINE.failures.seen == {}


def test_calls_on_an_ordinary_subclass_are_seen_and_on_a_wrapper_at_the_kernels(probe: Any) -> None:
    with probe(aten=True) as tool:
        torch.arange(3.0, device=D).as_subclass(Named) + 1
        Wrapped(torch.ones(2, device=D)).neg()
    assert "torch.Tensor.add" in tool.names_seen("api") and "torch.Tensor.neg" not in tool.names_seen("api")
    assert tool.names_seen("aten").count("aten.neg.default") == 1


def test_a_subclass_of_the_program_that_refuses_is_obeyed(probe: Any) -> None:
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.add:
                raise TypeError("not with me")
            return super().__torch_function__(func, types, args, kwargs)

    x = torch.ones(2, device=D).as_subclass(Refuses)
    for name in TOOLS:
        with getattr(op_tools, name)(), pytest.raises(TypeError, match="not with me"):
            x.add(1)
    with contextlib.suppress(TypeError), probe() as tool:
        x.add(1)
    assert tool.failures and ENGINE.failures.seen == {}
