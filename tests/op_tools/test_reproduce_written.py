"""Calls that write to inputs which they do not return: what they wrote is captured, judged, and checked by the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from test_reproduce_calls import OTHER, exit_code, made, random, spoiled
from torch import Tensor
from torch.nn import functional as F

import op_tools
from op_tools.names import name_of
from op_tools.replay import find_items
from op_tools.reproduce.write import is_wrong
from op_tools.runs import BadInput
from op_tools.storage import CallInfo, CaptureStore

ADDCDIV = torch.ops.aten._foreach_addcdiv_.ScalarList


def lists(count: int) -> list[list[Tensor]]:
    return [[random(4, seed=seed) + 5, random(3, seed=seed) + 5] for seed in range(count)]


# The call, its inputs, and which of them it writes to, in the order in which OpCapture saves them.
Writing = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Tensor]]


def writing(name: str) -> Writing:
    if name == "batch_norm":
        # Keyword arguments in another order than the parameters.
        mean, variance = torch.zeros(3), torch.ones(3)
        statistics = {"running_var": variance, "running_mean": mean, "training": True}
        return F.batch_norm, (random(4, 3, 5),), statistics, [mean, variance]
    if name == "setitem":
        target = random(4, 8)
        return Tensor.__setitem__, (target, (slice(1, 3),), random(2, 8, seed=1)), {}, [target]
    targets, over, under = lists(3)
    return ADDCDIV, (targets, over, under, [0.5, 2.0]), {}, targets


def captured(folder: Path, name: str, change: Callable[[Tensor], Tensor], place: int = 0) -> Path:
    """Capture the call as OpCapture does; `change` falsifies one of the tensors that it wrote to."""
    func, args, kwargs, targets = writing(name)
    info = CallInfo(name_of(func), 1, device="cpu")
    with CaptureStore(folder) as store:
        store.put(info, "input", args, kwargs)
        result = func(*args, **kwargs)
        after = [change(tensor) if index == place else tensor for index, tensor in enumerate(targets)]
        store.put(info, "output", (result,), {"written": tuple(after)})
    return folder


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("batch_norm", 0, "input 2 (written)"),
        ("batch_norm", 1, "input 1 (written)"),
        ("setitem", 0, "input 0 (written)"),
        ("foreach", 1, "input 1 (written)"),
    ],
)
def test_a_wrong_write_fails_and_a_right_one_passes(
    name: str, place: int, value: str, tmp_path: Path
) -> None:
    file, names = made(captured(tmp_path / "run", name, spoiled, place))
    assert [text.partition(":")[0] for text in file.wrong] == [value]
    right = names["CASE"].call
    written = names["CASE"].written

    def wrong(x: list[Tensor], device: torch.device) -> Any:
        result = right(x, device)
        if device == torch.device(OTHER):
            x[written[0]][0] += 1
        return result

    assert exit_code(names, OTHER) == 0
    assert exit_code(names, OTHER, wrong) == 1


@pytest.mark.parametrize("name", ["batch_norm", "setitem", "foreach"])
def test_a_right_write_is_not_wrong(name: str, tmp_path: Path) -> None:
    (item,) = find_items(captured(tmp_path / "run", name, lambda tensor: tensor))
    assert not is_wrong(item)
    with pytest.raises(BadInput, match=r"is not wrong \(.*\(written\) same") as raised:
        made(tmp_path / "run")
    assert raised.value.code == 1


def test_a_large_write_is_cut_with_what_it_wrote(tmp_path: Path) -> None:
    target, value = random(200, 256), random(200, 256, seed=1)
    info = CallInfo("torch.Tensor.__setitem__", 1, device="cpu")
    with CaptureStore(tmp_path / "run") as store:
        store.put(info, "input", (target, slice(None), value))
        after = value.clone()
        after[150, 3] += 1
        store.put(info, "output", (None,), {"written": (after,)})
    file, names = made(tmp_path / "run", limit=150 << 10)
    assert "of 200 of the first dimension" in file.cut
    assert file.beside is None
    assert 10 < names["CASE"].inputs[0].shape[0] < 100


def test_a_wrong_kernel_that_writes_is_reproduced_from_its_capture(tmp_path: Path) -> None:
    """All the way: the device, OpCapture, the file."""

    def kernel(target: Tensor, value: Any) -> Tensor:
        return target.copy_(torch.full(target.shape, float(value) * 1.5))

    target = random(4, 8).to("dipu")
    library = torch.library.Library("aten", "IMPL")
    library.impl("fill_.Scalar", kernel, "PrivateUse1", allow_override=True)
    library.impl("fill_.Tensor", kernel, "PrivateUse1", allow_override=True)
    with op_tools.OpCapture(results=str(tmp_path / "run"), list=".*setitem.*"):
        target[1:3] = 2.0
    library._destroy()
    file, names = made(tmp_path / "run")
    assert file.wrong[0].startswith("input 0 (written): 16 of 32 elements")
    assert exit_code(names, "dipu") == 0


def test_strides_of_a_foreign_description_are_not_trusted(tmp_path: Path) -> None:
    capture(tmp_path / "run", torch.mul, (random(4, 8), 2.0), change=spoiled)
    (path,) = tmp_path.glob("run/**/input.pth.json")
    document = json.loads(path.read_text())
    for strides in (["8", 1], 7, [8.0, 1], [True, True], [-8, 1], [8], [1 << 70, 1], {"a": 1}, None):
        document["args"][0]["stride"] = strides
        path.write_text(json.dumps(document))
        _, names = made(tmp_path / "run")
        assert names["CASE"].inputs[0].stride == (8, 1), strides
