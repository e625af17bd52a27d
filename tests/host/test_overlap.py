"""Operands that share memory: the chip refuses what the CPU refuses, and computes what it computes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forked_python import run_python

pytestmark = pytest.mark.device

Call = Callable[[torch.Tensor], Any]


def indices(a: torch.Tensor, *shape: int) -> torch.Tensor:
    """Places for results that are numbers of elements."""
    return torch.empty(shape or a.shape, dtype=torch.int64, device=a.device)


def order(a: torch.Tensor) -> torch.Tensor:
    return torch.tensor([3, 1, 0, 2], device=a.device)


def flat(a: torch.Tensor) -> torch.Tensor:
    return a.view(-1)


# `a` is a matrix of 4 x 4, so that its transpose has the same memory and other strides.
REFUSED: dict[str, Call] = {
    "add_": lambda a: flat(a)[1:].add_(flat(a)[:-1]),
    "add of the transpose": lambda a: torch.add(a, a.t(), out=a),
    "abs": lambda a: torch.abs(a.t(), out=a),
    "exp": lambda a: torch.exp(flat(a)[:-1], out=flat(a)[1:]),
    "hardswish": lambda a: torch._C._nn.hardswish(a.t(), out=a),
    "lerp_": lambda a: a.lerp_(a.t(), 0.5),
    "addcmul_": lambda a: a.addcmul_(a.t(), a),
    "addmm": lambda a: torch.addmm(a.t(), a.clone(), a.clone(), out=a),
    "cumsum": lambda a: torch.cumsum(a.t(), 0, out=a),
    "sort": lambda a: torch.sort(a.t(), 0, out=(a, indices(a))),
    "topk": lambda a: torch.topk(a, 2, 0, out=(a[:2], indices(a, 2, 4))),
    "max": lambda a: torch.max(a, 0, out=(a[0], indices(a, 4))),
    "stack": lambda a: torch.stack((a[:2], a[:2]), out=a.view(2, 2, 4)),
    "stack of many": lambda a: torch.stack(
        [*(torch.zeros(1, device=a.device) for _ in range(15)), a[3, 3:]], out=a.view(16, 1)
    ),
    "cat": lambda a: torch.cat((a[:2], a[:2]), out=a),
    "index_put_": lambda a: a.index_put_((order(a),), a.t()),
    "index_put_ of a row": lambda a: a.index_put_((order(a)[:1],), a[0]),
    "index_copy_": lambda a: a.index_copy_(0, order(a), a.t()),
    "index_select": lambda a: torch.index_select(a, 0, order(a), out=a),
    "gather": lambda a: torch.gather(a, 0, order(a).expand(4, 4), out=a),
    "scatter": lambda a: torch.scatter(flat(a)[:4], 0, order(a), 7.0, out=flat(a)[1:5]),
    "take": lambda a: torch.take(a, order(a), out=a[0]),
    "masked_select": lambda a: torch.masked_select(a, a > 3, out=flat(a)[:12]),
    "bernoulli": lambda a: torch.bernoulli(flat(a.div_(16))[:-1], out=flat(a)[1:]),
    "another dtype": lambda a: torch.eq(flat(a)[:8], 1.0, out=flat(a.view(torch.bool))[:8]),
    "logical_and_": lambda a: flat(a)[1:].logical_and_(flat(a)[:-1]),
    "an expanded output": lambda a: a[0, :1].expand(4).add_(1.0),
}

COMPUTED: dict[str, Call] = {
    "in place": lambda a: a.sin_(),
    "of itself": lambda a: a.mul_(a),
    "into itself": lambda a: torch.exp(a, out=a),
    "into itself, strided": lambda a: torch.exp(a[:, ::2], out=a[:, ::2]),
    "beside itself": lambda a: torch.neg(a[:2], out=a[2:]),
    "the other half, in place": lambda a: a[:2].add_(a[2:]),
    "every other column": lambda a: a[:, ::2].mul_(a[:, 1::2]),
    "add": lambda a: torch.add(a, 1.0, out=a),
    "addcmul": lambda a: torch.addcmul(a, a, a, out=a),
    "sum into a row": lambda a: torch.sum(a, 0, out=a[0]),
    "amax into a row": lambda a: torch.amax(a, 0, out=a[0]),
    "logsumexp into a row": lambda a: torch.logsumexp(a, 0, out=a[0]),
    "mm into itself": lambda a: torch.mm(a, a, out=a),
    "addmm into itself": lambda a: torch.addmm(a, a, a, out=a),
    "softmax into itself": lambda a: torch.softmax(a, 0, out=a),
    "cumsum into itself": lambda a: torch.cumsum(a, 0, out=a),
    "sort into itself": lambda a: torch.sort(a, 0, True, out=(a, indices(a))),
    "tril of the transpose": lambda a: torch.tril(a.t(), out=a),
    "masked by itself": lambda a: a.masked_fill_(a > 3, 1.0),
    "two outputs in one storage": lambda a: torch.frexp(a.clone(), out=(a, torch.empty_like(a).int())),
}


def matrix(device: str) -> torch.Tensor:
    return torch.arange(16.0, device=device).view(4, 4)


def outcome(call: Call, device: str) -> tuple[type[Exception] | None, str, torch.Tensor]:
    """The error, its words without the operator's name before them, and what the memory holds after the call."""
    a = matrix(device)
    torch.manual_seed(0)
    try:
        call(a)
    except Exception as error:
        text = str(error).splitlines()[0]
        return type(error), text[max(text.find("unsupported"), 0) :], a.cpu()
    return None, "", a.cpu()


@pytest.mark.parametrize("name", REFUSED)
def test_a_partial_overlap_is_refused_as_on_the_cpu(name: str) -> None:
    kind, text, memory = outcome(REFUSED[name], "dipu")
    right_kind, right_text, right_memory = outcome(REFUSED[name], "cpu")
    assert right_kind is RuntimeError and "unsupported operation" in right_text, "the CPU computes it"
    assert (kind, text) == (right_kind, right_text)
    assert torch.equal(memory, right_memory)


@pytest.mark.parametrize("name", COMPUTED)
def test_memory_may_be_shared_where_the_cpu_allows_it(name: str) -> None:
    kind, text, memory = outcome(COMPUTED[name], "dipu")
    right_kind, _, right_memory = outcome(COMPUTED[name], "cpu")
    assert right_kind is None, "the CPU refuses it"
    assert kind is None, text
    assert torch.equal(memory, right_memory)
    assert not torch.equal(memory, matrix("cpu"))


def test_a_refusal_leaves_nothing_behind() -> None:
    a = matrix("dipu")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.cumsum(a.t(), 0, out=a)
    x, out = matrix("dipu"), torch.empty(4, 4, device="dipu")
    for _ in range(20):
        assert torch.equal(torch.cumsum(x.t(), 0, out=out).cpu(), torch.cumsum(matrix("cpu").t(), 0))


QUEUED = """
import torch
a = torch.arange(16.0, device="dipu").view(4, 4)
torch.cumsum(a, 0, out=a)
torch.dipu.synchronize()
torch.cumsum(a.t(), 0, out=a)
try:
    torch.dipu.synchronize()
except RuntimeError as error:
    assert "unsupported operation" in str(error), error
    print("refused")
"""


def test_queued_work_is_refused_by_the_synchronisation() -> None:
    ran = run_python("-c", QUEUED, env={**os.environ, "DIPU_HOST_ASYNC": "1"}, timeout=120)
    assert ran.stdout.strip().endswith("refused"), ran.stderr
