"""What each name of `torch.cuda` does on the device, one check each: a name without a check fails the walk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Check = Callable[[Path], None]
CHECKS: dict[str, Check] = {}
REFUSED: dict[str, tuple[object, ...]] = {
    "CUDAGraph": (),
    "CUDAPluggableAllocator": ("lib.so", "allocate", "free"),
    "ExternalStream": (1234,),
    "GreenContext": (),
    "MemPool": (),
    "caching_allocator_disabled": (),
    "caching_allocator_enable": (False,),
    "change_current_allocator": (object(),),
    "check_error": (0,),
    "clock_rate": (),
    "cudaStatus": (),
    "cudart": (),
    "current_blas_handle": (),
    "current_solver_handle": (),
    "get_stream_from_external": (1234,),
    "graph": (object(),),
    "graph_pool_handle": (),
    "host_memory_stats": (),
    "host_memory_stats_as_nested_dict": (),
    "list_gpu_processes": (),
    "make_graphed_callables": (torch.nn.Linear(2, 2), (torch.ones(1, 2),)),
    "memory_usage": (),
    "power_draw": (),
    "reset_accumulated_host_memory_stats": (),
    "reset_peak_host_memory_stats": (),
    "temperature": (),
    "use_mem_pool": (object(),),
    "utilization": (),
}
"""Names that cannot be had, with the arguments of a real call."""

MB = 1 << 20


def checks(*names: str) -> Callable[[Check], Check]:
    def keep(function: Check) -> Check:
        CHECKS.update(dict.fromkeys(names, function))
        return function

    return keep


def settled() -> None:
    gc.collect()
    torch.cuda.synchronize()


# ---- devices ----


@checks("is_available", "device_count", "init", "is_initialized")
def presence(tmp_path: Path) -> None:
    torch.cuda.init()
    assert torch.cuda.is_available() is True
    assert torch.cuda.is_initialized() is True
    assert torch.cuda.device_count() == torch.dipu.device_count() == 2


@checks("current_device", "set_device", "device", "device_of")
def choice_of_device(tmp_path: Path) -> None:
    torch.cuda.set_device(1)
    try:
        assert torch.cuda.current_device() == torch.dipu.current_device() == 1
        assert torch.zeros(1, device="cuda").get_device() == 1
        with torch.cuda.device("cuda:0"):
            assert torch.ones(1).cuda().get_device() == 0
        with torch.cuda.device_of(torch.ones(1, device="cuda:0")):
            assert torch.cuda.current_device() == 0
        with torch.cuda.device(None), torch.cuda.device_of(torch.ones(1)):
            assert torch.cuda.current_device() == 1
    finally:
        torch.cuda.set_device(torch.device("cuda", 0))
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match="7"):
        torch.cuda.set_device(7)


@checks("synchronize")
def synchronisation(tmp_path: Path) -> None:
    torch.dipu.configure(**{"async": 1}, delay_us=200_000)
    try:
        start = torch.cuda.Event()
        y = torch.ones(8, device="cuda") + 1
        start.record()
        assert not start.query()  # still under way
        torch.cuda.synchronize(device="cuda:0")
        assert start.query()
    finally:
        torch.dipu.configure(delay_us=0, **{"async": 0})
    assert y.tolist() == [2.0] * 8


@checks(
    "get_device_properties", "get_device_name", "get_device_capability", "get_arch_list", "get_gencode_flags"
)
def description(tmp_path: Path) -> None:
    for device in (1, "cuda:1", torch.device("cuda", 1)):
        properties = torch.cuda.get_device_properties(device)
        assert properties.name == torch.cuda.get_device_name(device) == "simulated chip 1"
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability(device=device)
        assert properties.total_memory == torch.cuda.mem_get_info(device)[1]
    assert not hasattr(properties, "warp_size")
    with pytest.raises(NotImplementedError, match=r"get_device_properties.*warp_size.*total_memory"):
        _ = properties.warp_size
    assert torch.cuda.get_arch_list() == []
    assert torch.cuda.get_gencode_flags() == ""


@checks("can_device_access_peer", "ipc_collect")
def peers(tmp_path: Path) -> None:
    assert torch.cuda.can_device_access_peer("cuda:0", "cuda:1") is True
    assert torch.cuda.can_device_access_peer(device=0, peer_device=0) is False
    with pytest.raises(RuntimeError, match="9"):
        torch.cuda.can_device_access_peer(0, 9)
    held = torch.cuda.memory_allocated()
    torch.cuda.ipc_collect()  # nothing is shared, so nothing is given back
    assert torch.cuda.memory_allocated() == held


@checks("is_bf16_supported", "is_tf32_supported", "has_half", "has_magma")
def abilities(tmp_path: Path) -> None:
    assert torch.cuda.is_bf16_supported(including_emulation=False) is True
    product = torch.ones(2, 2, device="cuda", dtype=torch.bfloat16) @ torch.ones(2, 2).bfloat16().cuda()
    assert product.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert torch.cuda.is_tf32_supported() is False  # float32 products are float32 products here
    assert torch.cuda.has_half is True
    assert (torch.ones(2).half().cuda() * 2).tolist() == [2.0, 2.0]
    assert torch.cuda.has_magma is torch._C._has_magma


@checks("get_sync_debug_mode", "set_sync_debug_mode")
def sync_debugging(tmp_path: Path) -> None:
    x = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.set_sync_debug_mode(0)
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert torch.cuda.get_sync_debug_mode() == 2
        with pytest.raises(RuntimeError, match="called a synchronizing dipu operation"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.sum().item() == 3


@checks("CudaError", "DeferredCudaCallError")
def exceptions(tmp_path: Path) -> None:
    assert issubclass(torch.cuda.CudaError, RuntimeError)
    with pytest.raises(torch.cuda.DeferredCudaCallError, match="later"):
        raise torch.cuda.DeferredCudaCallError("later")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, device="cuda")


# ---- streams and events ----


@checks("Stream", "StreamContext", "stream", "current_stream", "default_stream", "set_stream")
def streams(tmp_path: Path) -> None:
    side = torch.cuda.Stream(device="cuda:0", priority=-1)
    assert isinstance(side, torch.cuda.Stream)
    assert side.priority == -1
    assert side.cuda_stream != torch.cuda.Stream().cuda_stream != 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream(device="cuda")
    with torch.cuda.stream(side), torch.cuda.StreamContext(side):
        assert torch.cuda.current_stream() == side == torch.accelerator.current_stream()
        y = torch.ones(4, device="cuda") * 3
    y.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    assert y.tolist() == [3.0] * 4
    torch.cuda.set_stream(side)
    try:
        assert torch.cuda.current_stream(0) == side
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


@checks("Event")
def events(tmp_path: Path) -> None:
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(True)
    assert isinstance(first, torch.cuda.Event)
    first.record()
    time.sleep(0.02)
    second.record(torch.cuda.current_stream())
    second.synchronize()
    assert 15 < first.elapsed_time(second) < 20_000
    other = torch.cuda.Stream()
    other.wait_event(other.record_event())
    other.synchronize()
    assert other.query()
    for wrong in ({"interprocess": True}, {"external": True}):
        with pytest.raises(NotImplementedError, match="event"):
            torch.cuda.Event(**wrong)


@checks("is_current_stream_capturing")
def capturing(tmp_path: Path) -> None:
    assert torch.cuda.is_current_stream_capturing() is False
    assert torch.cuda.graphs.is_current_stream_capturing() is False


# ---- random numbers ----


@checks("manual_seed", "manual_seed_all", "initial_seed", "seed", "seed_all", "default_generators")
def seeds(tmp_path: Path) -> None:
    torch.dipu.manual_seed_all(1)
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == torch.cuda.default_generators[0].initial_seed() == 7
    first = torch.rand(6, device="cuda")
    torch.cuda.manual_seed_all(7)
    assert [generator.initial_seed() for generator in torch.cuda.default_generators] == [7, 7]
    assert torch.equal(torch.rand(6, device="cuda"), first)
    assert torch.equal(torch.rand(6, device="cuda:1").cpu(), first.cpu())
    torch.cuda.seed()
    chosen = torch.cuda.initial_seed()
    assert chosen != 7
    torch.cuda.seed_all()
    assert torch.cuda.default_generators[1].initial_seed() == torch.cuda.initial_seed() != chosen
    assert len(torch.cuda.default_generators) == 2
    assert torch.cuda.default_generators[-1].device == torch.device("cuda:1")


@checks("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all")
def random_states(tmp_path: Path) -> None:
    state, states = torch.cuda.get_rng_state(device="cuda:0"), torch.cuda.get_rng_state_all()
    drawn = torch.rand(5, device="cuda:0"), torch.rand(5, device="cuda:1")
    torch.cuda.set_rng_state(state, device="cuda:0")
    assert torch.equal(torch.rand(5, device="cuda:0"), drawn[0])
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(5, device="cuda:1"), drawn[1])


# ---- memory ----


@checks("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "reset_max_memory_allocated")
def allocated_memory(tmp_path: Path) -> None:
    settled()
    before = torch.cuda.memory_allocated(device="cuda:0")
    x = torch.ones(MB, device="cuda")
    assert torch.cuda.memory_allocated() == before + 4 * MB
    del x
    assert torch.cuda.memory_allocated() == before
    for reset in (torch.cuda.reset_peak_memory_stats, torch.cuda.reset_max_memory_allocated):
        big = torch.ones(MB, device="cuda")
        del big
        assert torch.cuda.max_memory_allocated() >= before + 4 * MB
        reset(device=0)
        assert torch.cuda.max_memory_allocated("cuda") < before + 4 * MB


@checks(
    "memory_reserved", "memory_cached", "max_memory_reserved", "max_memory_cached", "reset_max_memory_cached",
    "empty_cache",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def reserved_memory(tmp_path: Path) -> None:
    settled()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device=0)
    x = torch.ones(3 * MB, device="cuda")
    del x
    assert torch.cuda.memory_reserved() == torch.cuda.memory_cached(device="cuda") >= before + 12 * MB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before + 12 * MB
    assert torch.cuda.max_memory_reserved() == torch.cuda.max_memory_cached(0) >= before + 12 * MB
    torch.cuda.reset_max_memory_cached("cuda:0")
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()


@checks("memory_stats", "memory_stats_as_nested_dict", "reset_accumulated_memory_stats", "memory_summary")
def memory_figures(tmp_path: Path) -> None:
    x = torch.ones(2 * MB, device="cuda")
    figures = torch.cuda.memory_stats(device="cuda:0")
    nested = torch.cuda.memory_stats_as_nested_dict("cuda")
    assert figures["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
    assert figures["allocated_bytes.all.allocated"] >= x.nbytes
    torch.cuda.reset_accumulated_memory_stats(device=0)
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] < x.nbytes
    assert f"{torch.cuda.memory_allocated() / MB:.2f}" in torch.cuda.memory_summary(0, abbreviated=True)


@checks("mem_get_info", "device_memory_used")
def free_memory(tmp_path: Path) -> None:
    settled()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device="cuda:0")
    x = torch.ones(5 * MB, device="cuda")
    assert torch.cuda.mem_get_info(0)[0] <= free - x.nbytes
    assert torch.cuda.device_memory_used("cuda") == total - torch.cuda.mem_get_info()[0] >= x.nbytes


@checks("set_per_process_memory_fraction", "get_per_process_memory_fraction")
def memory_share(tmp_path: Path) -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(0.01, device="cuda:0")
    try:
        assert torch.cuda.get_per_process_memory_fraction(device=0) == 0.01
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(total // 20, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert torch.empty(total // 20, dtype=torch.uint8, device="cuda").numel() == total // 20


@checks("memory_snapshot")
def snapshots(tmp_path: Path) -> None:
    x = torch.ones(MB, device="cuda:1")
    segments = torch.cuda.memory_snapshot()
    (found,) = [
        (segment["device"], segment["segment_type"], block["size"], block["state"])
        for segment in segments
        for block in segment["blocks"]
        if block["address"] == x.data_ptr()
    ]
    assert found == (1, "large", 4 * MB, "active_allocated")
    assert all(
        segment["total_size"] == sum(block["size"] for block in segment["blocks"]) for segment in segments
    )


@checks("caching_allocator_alloc", "caching_allocator_delete")
def blocks_by_address(tmp_path: Path) -> None:
    settled()
    before = torch.cuda.memory_allocated(1)
    address = torch.cuda.caching_allocator_alloc(2 * MB, device="cuda:1", stream=torch.cuda.current_stream(1))
    assert torch.cuda.memory_allocated(1) == before + 2 * MB
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    assert [block["state"] for block in blocks if block["address"] == address] == ["active_allocated"]
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(1) == before
    with pytest.raises(ValueError, match=r"caching_allocator_alloc.*once"):
        torch.cuda.caching_allocator_delete(address)


@checks("get_allocator_backend")
def allocator_name(tmp_path: Path) -> None:
    assert torch.cuda.get_allocator_backend() == torch.cuda.memory.get_allocator_backend() == "native"
