"""Checkpoints from and for cuda machines."""

from __future__ import annotations

import io

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def cuda_checkpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file as a cuda machine writes it: its storages say cuda:0 and cuda:1."""
    tags = iter(["cuda:0", "cuda:1"])
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: next(tags))
    buffer = io.BytesIO()
    content = {"a": torch.arange(4.0), "b": torch.arange(3)}
    torch.save(content, buffer, _use_new_zipfile_serialization=request.param)
    monkeypatch.undo()
    return buffer.getvalue()


def _devices(checkpoint: bytes, map_location: object = None) -> list[str]:
    loaded = torch.load(io.BytesIO(checkpoint), map_location=map_location, weights_only=True)
    assert loaded["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert loaded["b"].tolist() == [0, 1, 2]
    return [str(loaded[name].device) for name in ("a", "b")]


def test_locations_in_the_file(cuda_checkpoint: bytes) -> None:
    assert _devices(cuda_checkpoint) == ["dipu:0", "dipu:1"]


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        ("cpu", ["cpu", "cpu"]),
        ("cuda:1", ["dipu:1", "dipu:1"]),
        (torch.device("dipu", 1), ["dipu:1", "dipu:1"]),
        ({"cuda:1": "cuda:0"}, ["dipu:0", "dipu:0"]),
        ({"cuda:0": "cpu", "cuda:1": "cpu"}, ["cpu", "cpu"]),
        (lambda storage, location: storage.cuda(1), ["dipu:1", "dipu:1"]),
        (lambda storage, location: None, ["dipu:0", "dipu:1"]),
    ],
)
def test_map_location(cuda_checkpoint: bytes, map_location: object, expected: list[str]) -> None:
    assert _devices(cuda_checkpoint, map_location) == expected


def test_a_real_cuda_device_as_location(cuda_checkpoint: bytes) -> None:
    assert _devices(cuda_checkpoint, torch.device("cuda:1")) == ["dipu:1", "dipu:1"]


def test_own_checkpoints_with_a_map_in_cuda_terms() -> None:
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0, device="cuda:1"), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location={"cuda:1": "cuda:0"})
    assert (str(loaded.device), loaded.tolist()) == ("dipu:0", [0.0, 1.0, 2.0])


def test_optimizer_state_travels() -> None:
    model = torch.nn.Linear(3, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="cuda")).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    restored = torch.optim.Adam(model.parameters())
    restored.load_state_dict(torch.load(buffer, map_location="cuda"))
    for state, other in zip(optimizer.state.values(), restored.state.values(), strict=True):
        assert other["exp_avg"].is_cuda
        assert torch.equal(state["exp_avg"].cpu(), other["exp_avg"].cpu())


def test_a_function_that_decides_by_the_name_in_the_file_is_told_cuda() -> None:
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0, device="cuda:0"), buffer)
    buffer.seek(0)
    seen: list[str] = []

    def place(storage: torch.UntypedStorage, location: str) -> object:
        seen.append(location)
        return storage.cuda(1) if location.startswith("cuda") else storage

    loaded = torch.load(buffer, map_location=place)
    assert seen == ["cuda:0"] and str(loaded.device) == "dipu:1" and loaded.tolist() == [0.0, 1.0, 2.0]
