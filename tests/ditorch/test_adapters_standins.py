"""Each vendor's package from choice to training, on a stand-in that follows the vendor's documented interface.

The tensors live on the stand-in's device; `calls` is what reached the functions of its device module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from forked_programs import Program, needs_no_card, run_all

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("run_python"), needs_no_card]


@dataclass(frozen=True)
class Vendor:
    package: str
    version: str
    device: str
    group: str
    graph: str
    card: str
    capability: tuple[int, int]


VENDORS = {
    vendor.device: vendor
    for vendor in (
        Vendor("torch_npu", "2.1.0.post3", "npu", "hccl", "NPUGraph", "Ascend910", (0, 0)),
        Vendor("torch_mlu", "1.24.1", "mlu", "cncl", "MLUGraph", "MLU370", (1, 0)),
        Vendor("torch_musa", "2.5.0", "musa", "mccl", "MUSAGraph", "MTT S4000", (1, 0)),
        Vendor("torch_br", "1.10.0", "supa", "sccl", "SUPAGraph", "Biren106M", (1, 0)),
    )
}

_PROGRAM = """
import io, json, tempfile
import torch
import ditorch
from chip_driver import calls

seen = {"framework": ditorch.framework, "enabled": ditorch.enabled()}

def called(*names):
    found = [[call[0], *map(str, call[1:])] for call in calls if call[0] in names]
    calls.clear()
    return found

# names of devices, both ways
x = torch.arange(4.0, device="cuda:1")
seen["devices"] = [
    str(x.device), str(torch.device("cuda", 1)), str(torch.ones(2).cuda().device), str(x.to("cuda:0").device),
    torch.cuda.is_available(), torch.cuda.device_count(), x.is_cuda, torch.ones(2).is_cuda,
    str(torch.ones(1).to(0).device), x.type(),
]
called()
torch.cuda.set_device("cuda:1")
seen["current"] = [torch.cuda.current_device(), str(torch.zeros(1, device="cuda").device)]
with torch.cuda.device(0):
    seen["current"].append(torch.cuda.current_device())
torch.cuda.set_device(torch.device("cuda:0"))
seen["set_device"] = called("set_device")
seen["properties"] = [
    torch.cuda.get_device_name("cuda:1"), torch.cuda.get_device_properties(torch.device("cuda:0")).total_memory,
    torch.cuda.get_device_capability(), torch.cuda.is_bf16_supported(), torch.cuda.CUDAGraph.__name__,
    torch.cuda.can_device_access_peer("cuda:0", "cuda:1"),
]
seen["property calls"] = called("get_device_name", "get_device_properties", "can_device_access_peer")

# streams and events
side = torch.cuda.Stream(device="cuda:0")
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    inside = torch.cuda.current_stream() == side
    y = torch.ones(64, device="cuda") * 2
torch.cuda.current_stream("cuda:0").wait_stream(side)
end.record()
torch.cuda.synchronize("cuda:0")
torch.cuda.synchronize()
seen["streams"] = [inside, y.sum().item(), begin.elapsed_time(end) >= 0, torch.cuda.current_stream() == side,
                   str(side.device), torch.cuda.default_stream() == torch.cuda.current_stream()]
seen["synchronize"] = called("synchronize")

# memory
torch.cuda.reset_peak_memory_stats("cuda:0")
before = torch.cuda.memory_allocated("cuda:0")
block = torch.empty(2**20, dtype=torch.uint8, device="cuda:0")
grown = torch.cuda.memory_allocated("cuda:0") - before
del block
free, total = torch.cuda.mem_get_info("cuda:0")
seen["memory"] = [grown, torch.cuda.memory_allocated(0) == before, torch.cuda.max_memory_allocated() >= before + 2**20,
                  torch.cuda.memory_reserved() >= 2**20, 0 < free <= total]
torch.cuda.empty_cache()
seen["memory calls"] = sorted({call[0] for call in called("memory_allocated", "mem_get_info", "empty_cache")})

# random numbers
def draw(device):
    return torch.rand(8, device=device).tolist()

torch.cuda.manual_seed_all(7)
first, other = draw("cuda:0"), draw("cuda:1")
torch.cuda.manual_seed(7)
again = draw("cuda:0")
state = torch.cuda.get_rng_state("cuda:1")
one = draw("cuda:1")
torch.cuda.set_rng_state(state, "cuda:1")
generator = torch.Generator("cuda").manual_seed(7)
seen["random"] = [first == again, first == other, one == draw("cuda:1"), len(torch.cuda.get_rng_state_all()),
                  torch.cuda.initial_seed(), str(generator.device),
                  torch.rand(8, device="cuda", generator=generator).tolist() == first]
seen["random calls"] = called("manual_seed_all", "manual_seed", "get_rng_state")

# mixed precision, training, checkpoints
torch.manual_seed(0)
model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
inputs, wanted = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
losses = []
for _ in range(5):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = model(inputs)
        loss = torch.nn.functional.mse_loss(result.float(), wanted)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.item())
seen["training"] = [str(result.dtype), losses[-1] < losses[0], str(model.weight.device), scaler.get_scale()]
buffer = io.BytesIO()
torch.save({"w": model.weight.detach()}, buffer)
buffer.seek(0)
loaded = torch.load(buffer, map_location="cuda:1")["w"]
seen["checkpoint"] = [str(loaded.device), torch.equal(loaded.cpu(), model.weight.detach().cpu())]
called()

# processes
import torch.distributed as dist
dist.init_process_group("nccl", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
reduced = torch.arange(3.0, device="cuda")
dist.all_reduce(reduced)
second = dist.new_group([0], backend="cuda:nccl")
dist.broadcast(reduced, 0, group=second)
seen["processes"] = [dist.distributed_c10d.get_backend(), reduced.tolist(), dist.is_nccl_available()]
seen["process calls"] = called("process group")
dist.destroy_process_group()

# what cannot be, and the way back
try:
    torch.cuda.cudart()
except ditorch.NotMapped as error:
    seen["refused"] = str(error)
ditorch.disable()
seen["disabled"] = [str(torch.device("cuda:1")), torch.cuda.is_available(), str(torch.ones(1, device=OWN).device)]
ditorch.enable()
seen["enabled again"] = str(torch.device("cuda:1"))
print("seen " + json.dumps(seen))
"""


@pytest.fixture(params=VENDORS)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


@pytest.mark.slow
def test_a_program_for_cuda_runs_on_the_package(vendor: Vendor) -> None:
    program = Program(f"OWN = {vendor.device!r}\n{_PROGRAM}", packages=(vendor.package,))
    ended = run_all({"program": program}, autoload=False)["program"]
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    seen: dict[str, Any] = json.loads(ended.stdout.rpartition("seen ")[2])
    zero, one = f"{vendor.device}:0", f"{vendor.device}:1"

    label = f"{vendor.package}:{vendor.version}"
    assert ended.stdout.count("ditorch.framework:") == 1
    assert ended.stdout.startswith(f"ditorch.framework: {label}\n")
    assert (seen["framework"], seen["enabled"]) == (label, True)
    assert ended.stderr == ""

    assert seen["devices"] == [one, one, zero, zero, True, 2, True, False, zero, "torch.cuda.FloatTensor"]
    assert seen["current"] == [1, one, 0]
    assert seen["set_device"] == [["set_device", one], ["set_device", zero]]
    name, memory, capability, bf16, graph, peer = seen["properties"]
    assert (name, graph, bf16, peer) == (f"{vendor.card} 1", vendor.graph, True, True)
    assert (memory > 0, tuple(capability)) == (True, vendor.capability)
    assert ["get_device_name", one] in seen["property calls"]
    assert ["can_device_access_peer", zero, one] in seen["property calls"]

    assert seen["streams"] == [True, 128.0, True, False, zero, True]
    assert seen["synchronize"][0] == ["synchronize", zero]
    assert seen["memory"] == [2**20, True, True, True, True]
    assert seen["memory calls"] == ["empty_cache", "mem_get_info", "memory_allocated"]
    assert seen["random"] == [True, True, True, 2, 7, zero, True]
    assert ["manual_seed_all", "7"] in seen["random calls"]
    assert ["get_rng_state", one] in seen["random calls"]

    assert seen["training"] == ["torch.bfloat16", True, zero, 8.0]
    assert seen["checkpoint"] == [one, True]
    assert seen["processes"] == [vendor.group, [0.0, 1.0, 2.0], True]
    assert seen["process calls"] == [["process group", vendor.group, "0", "1"]] * 2

    assert "torch.cuda.cudart is not available on" in seen["refused"]
    assert vendor.device in seen["refused"]
    assert seen["disabled"] == ["cuda:1", False, zero]
    assert seen["enabled again"] == one
