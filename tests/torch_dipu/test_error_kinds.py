"""The device raises what the CPU raises: the same kind of exception for the same mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_dipu  # noqa: F401

Call = Callable[[str], object]


def ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype).to(device)


def integers(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values).to(device)


MISTAKES: dict[str, tuple[type[Exception] | tuple[type[Exception], ...], Call]] = {
    "embedding": (IndexError, lambda d: F.embedding(integers(d, 9), ones(d, 4, 3))),
    "nll_loss": (IndexError, lambda d: F.nll_loss(ones(d, 2, 3), integers(d, 0, 5))),
    "index_select": (IndexError, lambda d: ones(d, 4).index_select(0, integers(d, 7))),
    "index": (IndexError, lambda d: ones(d, 4)[integers(d, 7)]),
    "index_put": (IndexError, lambda d: ones(d, 4).index_put_((integers(d, 7),), ones(d, 1))),
    "too many indices": (IndexError, lambda d: ones(d, 4)[0, 0]),
    "softmax dim": (IndexError, lambda d: ones(d, 2, 3).softmax(5)),
    "sum dim": (IndexError, lambda d: ones(d, 2, 3).sum(dim=4)),
    "cat dim": (IndexError, lambda d: torch.cat([ones(d, 2), ones(d, 2)], dim=3)),
    "argmax dim": (IndexError, lambda d: ones(d, 2, 3).argmax(dim=-4)),
    "index_select place": (IndexError, lambda d: ones(d, 4, 4).index_select(3, integers(d, 0))),
    "gather": (RuntimeError, lambda d: ones(d, 4).gather(0, integers(d, 9))),
    "scatter": (RuntimeError, lambda d: ones(d, 4).scatter(0, integers(d, 9), 1.0)),
    "mm": (RuntimeError, lambda d: ones(d, 2, 3) @ ones(d, 2, 3)),
    "add shapes": (RuntimeError, lambda d: ones(d, 2) + ones(d, 3)),
    "div mode": (RuntimeError, lambda d: torch.div(ones(d, 2), ones(d, 2), rounding_mode="up")),
    "reflection pad": (RuntimeError, lambda d: F.pad(ones(d, 1, 1, 2, 2), (5, 5, 0, 0), mode="reflect")),
    "random range": (RuntimeError, lambda d: ones(d, 3).random_(5, 2)),
    "add_ cannot hold": (RuntimeError, lambda d: integers(d, 1).add_(ones(d, 1))),
    "histc of bool": (NotImplementedError, lambda d: torch.histc(ones(d, 3, dtype=torch.bool))),
    "bitwise_and of floats": (NotImplementedError, lambda d: ones(d, 3) & ones(d, 3)),
    "bitwise_not of floats": (NotImplementedError, lambda d: torch.bitwise_not(ones(d, 3))),
    "dropout probability": (ValueError, lambda d: F.dropout(ones(d, 3), 1.5)),
    "cross entropy sizes": (ValueError, lambda d: F.cross_entropy(ones(d, 2, 3), integers(d, 0, 1, 2))),
    "conv2d padding": (ValueError, lambda d: torch.nn.Conv2d(1, 1, 2, padding_mode="no").to(d)),
    # torch 2.11 takes the text for the name of a dimension.
    "sum of text": ((TypeError, RuntimeError), lambda d: ones(d, 3).sum("x")),
    "add of nothing": (TypeError, lambda d: torch.add(ones(d, 3), None)),
    "where condition": (RuntimeError, lambda d: torch.where(ones(d, 2), ones(d, 2), ones(d, 2))),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_kind_of_error_is_the_cpus(mistake: str) -> None:
    kind, call = MISTAKES[mistake]
    raised = {}
    for device in ("cpu", "dipu"):
        with pytest.raises(kind) as caught:
            call(device)
        raised[device] = type(caught.value)
    assert raised["dipu"] is raised["cpu"], raised


def test_the_device_goes_on_after_every_mistake() -> None:
    for _, call in MISTAKES.values():
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)):
            call("dipu")
    assert (ones("dipu", 3) + 1).cpu().tolist() == [2, 2, 2]
