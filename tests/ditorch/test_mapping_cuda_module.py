"""The names of torch.cuda under the mapping."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]


def test_what_a_training_script_needs_is_mapped() -> None:
    needed = """
        is_available device_count current_device set_device synchronize is_initialized init device device_of
        Stream Event stream StreamContext current_stream default_stream set_stream manual_seed
        manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state get_rng_state_all
        set_rng_state_all default_generators memory_allocated max_memory_allocated memory_reserved
        max_memory_reserved memory_stats memory_summary memory_snapshot mem_get_info empty_cache
        reset_peak_memory_stats reset_accumulated_memory_stats set_per_process_memory_fraction
        get_per_process_memory_fraction get_device_properties get_device_name get_device_capability
        is_bf16_supported can_device_access_peer ipc_collect get_arch_list
    """
    missing = [name for name in needed.split() if not hasattr(torch.dipu, name)]
    assert missing == []


def test_devices() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.dipu.device_count() >= 1
    assert torch.cuda.is_initialized()
    before = torch.cuda.current_device()
    with torch.cuda.device("cuda:1"):
        assert torch.cuda.current_device() == torch.dipu.current_device() == 1
        assert torch.zeros(1).cuda().device == torch.device("cuda:1")
    assert torch.cuda.current_device() == before
    torch.cuda.set_device("cuda:1")
    try:
        assert torch.dipu.current_device() == 1
    finally:
        torch.cuda.set_device(torch.device("cuda", before))
    assert torch.dipu.current_device() == before


def test_properties() -> None:
    properties = torch.cuda.get_device_properties("cuda:0")
    assert properties.total_memory == torch.dipu.get_device_properties(0).total_memory > 0
    assert properties.name == torch.cuda.get_device_name(0)
    assert properties.gcnArchName
    with pytest.raises(AttributeError):
        _ = properties.nonsense


def test_random_state() -> None:
    torch.cuda.manual_seed(11)
    state = torch.cuda.get_rng_state("cuda:0")
    first = torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(state, "cuda:0")
    assert torch.equal(torch.rand(5, device="cuda").cpu(), first.cpu())
    assert torch.cuda.initial_seed() == 11
    torch.manual_seed(12)
    second = torch.rand(5, device="cuda")
    torch.cuda.manual_seed_all(12)
    assert torch.equal(torch.rand(5, device="cuda").cpu(), second.cpu())
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        torch.rand(3, device="cuda")
    assert torch.cuda.initial_seed() == 12


def test_memory() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.ones(1 << 16, device="cuda")
    assert torch.cuda.memory_allocated() - before >= x.nbytes
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory.memory_allocated() == torch.dipu.memory_allocated()
    free, total = torch.cuda.mem_get_info("cuda:0")
    assert 0 < free <= total
    assert torch.cuda.device_memory_used(0) == total - free
    assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
    assert isinstance(torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"], dict)
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


def test_private_device_index() -> None:
    index = torch.cuda._utils._get_device_index
    assert index("cuda:1") == 1
    assert index(torch.device("cuda:1")) == 1
    assert index(1) == 1
    assert index(torch.device("cuda"), optional=True) == torch.cuda.current_device()
    with pytest.raises(ValueError, match="cpu"):
        index(torch.device("cpu"))


def test_marks_are_accepted_and_count_their_depth() -> None:
    nvtx = torch.cuda.nvtx
    assert nvtx.range_push("outer") == 0
    assert nvtx.range_push("inner") == 1
    assert nvtx.range_pop() == 1
    assert nvtx.range_pop() == 0
    with nvtx.range("block"):
        nvtx.mark("here")
    assert nvtx.range_start("a") != nvtx.range_start("b")


def test_a_refused_class_still_works_in_isinstance() -> None:
    assert not isinstance(3, torch.cuda.CUDAGraph)
    assert torch.cuda.CUDAGraph.__name__ == "CUDAGraph"
