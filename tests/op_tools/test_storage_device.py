"""Captures of tensors on the device: what comes back is what the device held, on the CPU, and where it was is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools.storage import CallInfo, CaptureStore, load

pytestmark = pytest.mark.device


@pytest.mark.parametrize("kind", ["files", "blobs"])
def test_device_tensors(tmp_path: Path, kind: Any) -> None:
    x = torch.randn(40, 50, 60, device="dipu", requires_grad=True)
    values = {
        "whole": x,
        "permuted": x.permute(2, 0, 1),
        "slice": x[::3, 5:9, ::2],
        "expanded": x[:1, :, :1].expand(7, 50, 3),
        "scalar": x.sum(),
        "empty": x[:0],
        "half": x.detach().bfloat16(),
        "host": torch.arange(5),
    }
    paths: list[str] = []
    with CaptureStore(tmp_path, kind, on_saved=paths.append) as store:
        store.put(CallInfo("torch.add", 1, device="dipu:0"), "input", tuple(values.values()))
        before = x.detach().cpu().clone()
        with torch.no_grad():
            x.mul_(0)  # the capture shows what was there when it was taken
    found = load(paths[0])
    assert torch.equal(found["args"][0], before) and found["args"][0].requires_grad
    assert torch.equal(found["args"][1], before.permute(2, 0, 1))
    assert found["args"][1].stride() == before.permute(2, 0, 1).stride()
    assert torch.equal(found["args"][2], before[::3, 5:9, ::2])
    assert torch.equal(found["args"][3], before[:1, :, :1].expand(7, 50, 3))
    assert torch.equal(found["args"][6], before.bfloat16())
    assert all(tensor.device.type == "cpu" for tensor in found["args"])
    assert found["__op_tools__"]["devices"] == ("dipu:0",) * 7 + ("cpu",)


def test_random_state_and_graph_are_untouched(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    x = torch.randn(300, 300, device="dipu", requires_grad=True)
    y = x * 2
    version, node = y._version, y.grad_fn
    expected = torch.get_rng_state()
    with CaptureStore(tmp_path, "blobs") as store:
        for number in range(3):
            store.put(CallInfo("torch.mul", number), "output", (y, y.t(), y[1:]))
    assert torch.equal(torch.get_rng_state(), expected) and not torch.equal(state, expected[:0])
    assert y._version == version and y.grad_fn is node and y.requires_grad
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((300, 300), 2.0))
