"""A profile of cuda under the mapping: the device's rows, in columns that say CUDA."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]

CPU, CUDA, DIPU = ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.PrivateUse1


def multiply() -> None:
    x = torch.ones(16, 16, device="cuda")
    (x @ x).sum().item()


def titles(recorded: Any) -> set[str]:
    """The device's columns, by the device's name."""
    table = recorded.key_averages().table(sort_by="cuda_time_total")
    return {
        name
        for name in ("CUDA", "DIPU")
        if f"Self {name} %" in table and f"Self {name} time total: " in table
    }


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ({"activities": [CPU, CUDA]}, "CUDA"),
        ({}, "CUDA"),
        ({"use_cuda": True}, "CUDA"),
        ({"activities": [CUDA]}, "CUDA"),
        ({"activities": [CPU, DIPU]}, "DIPU"),
    ],
)
def test_the_columns_are_named_as_the_program_names_the_device(arguments: dict[str, Any], title: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # use_cuda is deprecated
        with profile(**arguments) as recorded:
            multiply()
    assert titles(recorded) == {title}
    work = {e.name for e in recorded.events() if e.device_type == DeviceType.PrivateUse1}
    assert {"diopiMm", "Memcpy DtoH (Device -> Pageable)"} <= work


def test_the_supported_activities_name_cuda() -> None:
    assert {CPU, CUDA, DIPU} <= torch.profiler.supported_activities()


def test_the_older_profiler() -> None:
    for arguments in ({"use_device": "cuda"}, {"use_cuda": True}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            with torch.autograd.profiler.profile(**arguments) as recorded:
                multiply()
        assert titles(recorded) == {"CUDA"}


def test_device_memory_is_cudas_column() -> None:
    with profile(activities=[CPU, CUDA], profile_memory=True) as recorded:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    head = recorded.key_averages().table(sort_by="self_cuda_memory_usage").splitlines()[1]
    assert "CUDA Mem" in head and "Self CUDA Mem" in head
    assert kept.numel() == 1 << 20


def test_filters_of_cudas_rows(tmp_path: Path) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("filters of activities are of torch 2.13")
    with profile(activities=[CPU, {CUDA: ["CUDA_RUNTIME", "GPU_MEMCPY"]}]) as recorded:
        multiply()
    names = {e.name for e in recorded.events()}
    assert "Memcpy DtoH (Device -> Pageable)" in names and "LaunchKernel_diopiMm" in names
    assert "diopiMm" not in names and "dipu_mm" not in names
