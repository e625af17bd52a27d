"""Capability: every public name of torch.accelerator."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import torch_dipu  # noqa: F401

accelerator = torch.accelerator


def chosen() -> None:
    assert accelerator.is_available()
    current = accelerator.current_accelerator()
    assert current is not None and current.type == "dipu" and current.index is None
    assert accelerator.device_count() == torch.dipu.device_count() >= 1


def device() -> None:
    last = accelerator.device_count() - 1
    try:
        accelerator.set_device_index(last)
        assert accelerator.current_device_index() == torch.dipu.current_device() == last
        with accelerator.device_index(0):
            assert accelerator.current_device_index() == 0
        assert accelerator.current_device_index() == last
        with accelerator.device_index(None):
            assert accelerator.current_device_index() == last
    finally:
        accelerator.set_device_index(0)


def former_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        accelerator.set_device_idx(0)
        assert accelerator.current_device_idx() == 0


def capability() -> None:
    told = accelerator.get_device_capability("dipu:0")["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= set(told)
    with pytest.raises(RuntimeError, match="device index 77 does not exist"):
        accelerator.get_device_capability("dipu:77")


def streams() -> None:
    before, other = accelerator.current_stream(), torch.Stream("dipu")
    assert before.device.type == "dipu"
    accelerator.set_stream(other)
    try:
        assert accelerator.current_stream() == other != before
        x = torch.ones(4, device="dipu") + 1
        accelerator.synchronize()
        assert x.tolist() == [2] * 4
    finally:
        accelerator.set_stream(before)


def memory() -> None:
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    before, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()
    x = torch.empty(3 << 20, dtype=torch.uint8, device="dipu")
    assert accelerator.memory_allocated() - before >= x.nbytes
    assert accelerator.memory_reserved() - reserved >= x.nbytes
    del x
    assert accelerator.memory_allocated() == before
    assert accelerator.max_memory_allocated() - before >= 3 << 20
    assert accelerator.max_memory_reserved() - reserved >= 3 << 20
    assert accelerator.memory_stats()["allocation.all.allocated"] >= 1
    accelerator.empty_cache()
    assert accelerator.memory_reserved() == reserved
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total == torch.dipu.get_device_properties(0).total_memory


def pinned_memory() -> None:
    x = torch.ones(1 << 16).pin_memory()
    y = x.to("dipu", non_blocking=True)
    del x
    accelerator.empty_host_cache()
    assert y.sum().item() == 1 << 16


def graphs() -> None:
    with pytest.raises(RuntimeError, match="not supported on device type: dipu"):
        accelerator.Graph()


SERVED: dict[str, Callable[[], None]] = {
    "is_available current_accelerator device_count": chosen,
    "set_device_index current_device_index device_index": device,
    "set_device_idx current_device_idx": former_names,
    "get_device_capability": capability,
    "current_stream set_stream synchronize": streams,
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats get_memory_info "
    "reset_peak_memory_stats reset_accumulated_memory_stats empty_cache": memory,
    "empty_host_cache": pinned_memory,
    "Graph": graphs,
}


def test_every_name_is_gone_through() -> None:
    assert set(accelerator.__all__) <= set(" ".join(SERVED).split())


@pytest.mark.parametrize("names", SERVED)
def test_served(names: str) -> None:
    if missing := [name for name in names.split() if not hasattr(accelerator, name)]:
        pytest.skip(f"this torch has no torch.accelerator.{missing[0]}")
    SERVED[names]()
