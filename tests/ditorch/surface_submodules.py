"""Checks of the old type names and of the submodules of `torch.cuda`; see surface_checks."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from surface_checks import CHECKS, MB, Check, checks

LEGACY = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


# ---- old names of types ----


def legacy_tensor(name: str, dtype: torch.dtype) -> Check:
    def check(tmp_path: Path) -> None:
        kind = getattr(torch.cuda, name)
        made = kind([1, 0])
        assert (made.device, made.dtype) == (torch.device("cuda:0"), dtype)
        assert made.tolist() == [1, 0]
        assert isinstance(made, kind)
        assert not isinstance(made.cpu(), kind)
        assert kind(2, 3).shape == (2, 3)
        assert torch.zeros(2).type(kind).dtype == torch.zeros(2).type(f"torch.cuda.{name}").dtype == dtype
        assert made.type() == f"torch.cuda.{name}"

    return check


def legacy_storage(name: str, dtype: torch.dtype) -> Check:
    def check(tmp_path: Path) -> None:
        kind = getattr(torch.cuda, name)
        made = kind([1, 0, 1])
        assert (made.device.type, made.dtype, made.size()) == ("cuda", dtype, 3)
        assert made.tolist() == [1, 0, 1]
        assert isinstance(made, kind)
        assert not isinstance(made.cpu(), kind)

    return check


for _prefix, _dtype in LEGACY.items():
    CHECKS[f"{_prefix}Tensor"] = legacy_tensor(f"{_prefix}Tensor", _dtype)
    CHECKS[f"{_prefix}Storage"] = legacy_storage(f"{_prefix}Storage", _dtype)


# ---- submodules ----


def same_objects(module: str) -> Check:
    """A submodule whose names are those of torch.cuda: the same objects, so that they need no second check."""

    def check(tmp_path: Path) -> None:
        place = getattr(torch.cuda, module)
        names = [name for name in torch.cuda.__all__ if name in vars(place)]
        assert len(names) >= 3
        different = [n for n in names if getattr(place, n) is not getattr(torch.cuda, n)]
        assert different == []

    return check


for _module in ("graphs", "random", "streams"):
    CHECKS[_module] = same_objects(_module)


@checks("memory")
def memory_module(tmp_path: Path) -> None:
    same_objects("memory")(tmp_path)
    memory = torch.cuda.memory
    x = torch.ones(MB, device="cuda")
    snapshot = memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert x.data_ptr() in {block["address"] for block in blocks}
    assert "total_reserved: " in torch.cuda._memory_viz.segsum(snapshot)  # torch's own viewer reads it
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes()).keys() == snapshot.keys()
    memory._record_memory_history(max_entries=100, device="cuda:0")
    y = torch.ones(MB, device="cuda")
    (event,) = [
        event for event in memory._snapshot()["device_traces"][0] if event.get("addr") == y.data_ptr()
    ][-1:]
    assert (event["action"], event["size"]) == ("alloc", 4 * MB)
    assert "memory_module" in {frame["name"] for frame in event["frames"]}
    memory._record_memory_history(enabled=None)
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.memory\._\w+ is not available on 'dipu'"):
        memory._get_current_allocator()


@checks("amp")
@pytest.mark.filterwarnings("ignore")
def amp_module(tmp_path: Path) -> None:
    amp = torch.cuda.amp
    assert amp.common.amp_definitely_not_available() is False
    a = torch.eye(4, device="cuda")
    with amp.autocast(dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    scaler = amp.GradScaler(init_scale=4.0)
    scaler.scale((weight * 3).sum()).backward()
    assert weight.grad.tolist() == [12.0, 12.0]
    scaler.step(torch.optim.SGD([weight], lr=1.0))
    assert weight.tolist() == [-2.0, -2.0]
    seen: list[torch.dtype] = []

    class Cast(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append(x.dtype)
            return x * 2

        @staticmethod
        @amp.custom_bwd
        def backward(ctx, grad):
            seen.append(grad.dtype)
            return grad * 2

    x = torch.ones(3, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        Cast.apply(x).sum().backward()
    assert seen == [torch.float32, torch.float32]
    assert x.grad.tolist() == [2.0] * 3


@checks("nvtx")
def nvtx_module(tmp_path: Path) -> None:
    nvtx = torch.cuda.nvtx
    assert [nvtx.range_push("a"), nvtx.range_push("b"), nvtx.range_pop(), nvtx.range_pop()] == [0, 1, 1, 0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as shown:
        nvtx.range_push("pushed")
        with nvtx.range("block {}", 3):
            nvtx.mark("here")
        nvtx.range_pop()
        nvtx.range_end(nvtx.range_start("started"))
    names = {event.name for event in shown.events()}
    assert names >= {"pushed", "block 3", "here", "started"}


@checks("nccl")
def nccl_module(tmp_path: Path) -> None:
    nccl = torch.cuda.nccl

    def pair(*values: float) -> list[torch.Tensor]:
        return [torch.tensor(values, device=f"cuda:{i}") * (i + 1) for i in range(2)]

    tensors = pair(1.0, 2.0)
    nccl.all_reduce(tensors)
    assert [t.tolist() for t in tensors] == [[3.0, 6.0]] * 2
    result = torch.zeros(2, device="cuda:1")
    nccl.reduce(pair(1.0, 2.0), result, root=1, op=2)
    assert result.tolist() == [2.0, 4.0]
    tensors = pair(5.0)
    nccl.broadcast(tensors, root=1)
    assert [t.tolist() for t in tensors] == [[10.0], [10.0]]
    wholes = [torch.zeros(2, device=f"cuda:{i}") for i in range(2)]
    nccl.all_gather(pair(1.0), wholes)
    assert [t.tolist() for t in wholes] == [[1.0, 2.0]] * 2
    parts = [torch.zeros(1, device=f"cuda:{i}") for i in range(2)]
    nccl.reduce_scatter(pair(1.0, 2.0), parts)
    assert [(t.tolist(), t.get_device()) for t in parts] == [([3.0], 0), ([6.0], 1)]
    with pytest.raises(ValueError, match="99 is no reduction"):
        nccl.all_reduce(pair(1.0), op=99)
    assert nccl.version() >= (2, 10)  # what DDP's hook for bfloat16 asks for
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.nccl\.unique_id is not available on 'dipu'"):
        nccl.unique_id()


@checks("sparse")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def sparse_module(tmp_path: Path) -> None:
    indices, values = torch.tensor([[0, 2]]), torch.tensor([3.0, 4.0])
    for prefix, dtype in LEGACY.items():
        kind = getattr(torch.cuda.sparse, f"{prefix}Tensor", None)
        if kind is None:
            continue
        made = kind(indices, values, torch.Size([4]))
        assert (made.device, made.dtype, made.layout) == (torch.device("cuda:0"), dtype, torch.sparse_coo)
        assert made.to_dense().tolist() == [3, 0, 4, 0]
        assert isinstance(made, kind)
        assert not isinstance(made, getattr(torch.cuda, f"{prefix}Tensor"))
        assert kind(2, 3).shape == (2, 3)


@checks("profiler")
def profiler_module(tmp_path: Path) -> None:
    for name in ("start", "stop"):
        with pytest.raises(NotImplementedError, match=rf"torch\.cuda\.profiler\.{name} .*torch\.profiler"):
            getattr(torch.cuda.profiler, name)()
    with pytest.raises(NotImplementedError, match=r"emit_nvtx is not available on 'dipu'"):
        torch.autograd.profiler.emit_nvtx().__enter__()


@checks("jiterator", "tunable")
def refused_modules(tmp_path: Path) -> None:
    kernel = "template <typename T> T f(T x) { return x; }"
    calls = {
        "jiterator._create_jit_fn": lambda: torch.cuda.jiterator._create_jit_fn(kernel)(torch.ones(2)),
        "tunable.enable": lambda: torch.cuda.tunable.enable(True),
        "gds.GdsFile": lambda: torch.cuda.gds.GdsFile("file", 0),
    }
    for name, call in calls.items():
        with pytest.raises(
            NotImplementedError, match=rf"torch\.cuda\.{name} is not available on 'dipu': .{{20,}}"
        ):
            call()
