"""dlinfer's kernels on a GPU: bandwidth of paged decode, tokens per second of a 1B llama, prefill, experts, 8 and 4 bits.

`python benchmarks/run.py dlinfer_gpu --device cuda`. Figures with a target are times over a bound: 1.25 of the time that
memory needs is 80 % of its bandwidth, a third of the time of transformers is three times its tokens per second. Without a
GPU (`--device cpu`) everything is tiny: that shows that it runs, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import dlinfer_gpu_llama
from dlinfer import ops
from dlinfer.reference import KERNELS as REFERENCE
from dlinfer.vendors import served_by
from gpu_timing import Timed, in_turn, recorded
from report import Case, Options, Report


@dataclass(frozen=True)
class Paged:
    """A shape of paged attention."""

    batch: int
    context: int
    size: int
    heads: int = 32
    kv_heads: int = 8
    block: int = 64
    bits: int = 0
    target: float | None = None

    @property
    def name(self) -> str:
        stored = f", {self.bits} bits" if self.bits else ""
        return f"{self.batch} x {self.context}, {self.heads}/{self.kv_heads} x {self.size}, blocks of {self.block}{stored}"


OF_BANDWIDTH = 1 / 0.8
DECODES = (
    Paged(32, 2048, 64, target=OF_BANDWIDTH),
    Paged(32, 4096, 64, target=OF_BANDWIDTH),
    Paged(32, 8192, 64, target=OF_BANDWIDTH),
    Paged(32, 2048, 128, target=OF_BANDWIDTH),
    Paged(32, 8192, 128, target=OF_BANDWIDTH),
    Paged(32, 2048, 64, block=16),
    Paged(32, 2048, 64, heads=32, kv_heads=32),
    Paged(8, 8192, 128),
    Paged(1, 32768, 128),
    Paged(32, 4096, 128, bits=8),
)
PREFILLS = (Paged(8, 2048, 64), Paged(8, 2048, 128), Paged(1, 8192, 128))
TINY = Paged(2, 96, 64, 4, 2)


def bandwidth(device: torch.device, quick: bool) -> dict[str, float]:
    """Bytes per second of the device's memory: a copy that reads and writes, and a sum that reads."""
    size = 2**20 if device.type == "cpu" else 2**31
    source = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    numbers = source.view(torch.int32)
    sides = {
        # A kernel: a copy would be done by the copy engines, which are slower.
        "copy": recorded(lambda: torch.mul(source, 1, out=target), device),
        "read": recorded(numbers.amax, device),
    }
    times = in_turn(sides, device, 5 if quick else 15)
    return {"copy": 2 * size / times["copy"].median, "read": size / times["read"].median}


class _Caches:
    """Paged caches of a few layers, more than the GPU's own cache holds, and the same keys without pages."""

    def __init__(self, shape: Paged, device: torch.device, dtype: torch.dtype) -> None:
        columns = -(-shape.context // shape.block)
        blocks = shape.batch * columns
        row = 2 * shape.kv_heads * shape.size * (1 if shape.bits else 2)
        self.bytes = shape.batch * shape.context * row
        self.layers = 1 if device.type == "cpu" else max(2, min(8, 2**30 // max(self.bytes, 1)))
        self.table = torch.randperm(blocks, device=device).view(shape.batch, columns).to(torch.int32)
        self.lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device)
        cache_shape = (blocks, shape.block, shape.kv_heads, shape.size)
        self.pairs = [
            tuple(_drawn(cache_shape, shape.bits, dtype, device) for _ in range(2))
            for _ in range(self.layers)
        ]

    def gathered(self, layer: int) -> list[Tensor]:
        """Keys and values [batch, kv_heads, context, size] of one layer."""
        length = int(self.lengths[0])
        rows = [cache[self.table.long()].flatten(1, 2)[:, :length] for cache in self.pairs[layer]]
        return [row.transpose(1, 2).contiguous() for row in rows]


def _drawn(shape: tuple[int, ...], bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if bits:
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=device)
    return torch.randn(shape, dtype=dtype, device=device)


def _decode_case(shape: Paged, memory: float, device: torch.device, quick: bool) -> Case:
    dtype = torch.bfloat16
    caches = _Caches(shape, device, dtype)
    query = torch.randn(shape.batch, shape.heads, shape.size, dtype=dtype, device=device)
    scales = torch.full((2,), 0.01, device=device) if shape.bits else None

    def paged() -> None:
        for key, value in caches.pairs:
            ops.paged_decode_attention(
                query, key, value, caches.table, shape.block, None, caches.lengths, shape.context, shape.heads,
                shape.kv_heads, kv_scales=scales, quant_bits=shape.bits,
            )  # fmt: skip

    sides = {"dlinfer": recorded(paged, device)}
    if not shape.bits:
        contiguous = [caches.gathered(layer) for layer in range(caches.layers)]
        rows = query.unsqueeze(2)

        def sdpa() -> None:
            for key, value in contiguous:
                F.scaled_dot_product_attention(rows, key, value, enable_gqa=True)

        sides["sdpa"] = recorded(sdpa, device)
    times = in_turn(sides, device, 5 if quick else 15)
    each = {name: timed.median / caches.layers for name, timed in times.items()}
    reached = caches.bytes / each["dlinfer"]
    cells = [
        f"{each['dlinfer'] * 1e6:.1f} us",
        f"{each['sdpa'] * 1e6:.1f} us" if "sdpa" in each else "",
        f"{reached / 1e9:.0f} GB/s, {reached / memory:.0%}",
    ]
    raw = {
        "seconds": {name: [t / caches.layers for t in timed.rounds] for name, timed in times.items()},
        "bytes": caches.bytes,
        "bytes_per_second": reached,
        "of_bandwidth": reached / memory,
    }
    return Case(f"decode attention {shape.name}", memory / reached, cells, shape.target, raw)


def _prefill_case(shape: Paged, device: torch.device, quick: bool) -> Case:
    dtype = torch.bfloat16
    caches = _Caches(shape, device, dtype)
    tokens = shape.batch * shape.context
    query = torch.randn(tokens, shape.heads, shape.size, dtype=dtype, device=device)
    ends = torch.arange(1, shape.batch + 1, device=device, dtype=torch.int32) * shape.context
    key_pages, value_pages = caches.pairs[0]
    key, value = caches.gathered(0)
    rows = query.view(shape.batch, shape.context, shape.heads, shape.size).transpose(1, 2)

    def paged() -> Tensor:
        return ops.paged_prefill_attention(
            query, None, None, key_pages, value_pages, caches.table, shape.block, ends, caches.lengths, shape.context,
            shape.context, shape.heads, shape.kv_heads, None,
        )  # fmt: skip

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(rows, key, value, is_causal=True, enable_gqa=True)

    error = (paged().view(rows.transpose(1, 2).shape) - sdpa().transpose(1, 2)).abs().max()
    times = in_turn(
        {"dlinfer": recorded(paged, device), "sdpa": recorded(sdpa, device)}, device, 3 if quick else 11
    )
    work = 2 * tokens * shape.context * shape.heads * shape.size
    speed = f"{work / times['dlinfer'].median / 1e12:.0f} TFLOP/s"
    return _against(
        f"prefill attention {shape.name}", times, "sdpa", {"largest_difference": float(error)}, speed
    )


def _against(name: str, times: dict[str, Timed], other: str, raw: dict[str, object], text: str = "") -> Case:
    mine, theirs = times["dlinfer"].median, times[other].median
    cells = [f"{mine * 1e6:.1f} us", f"{theirs * 1e6:.1f} us", text or f"{theirs / mine:.2f}x"]
    seconds = {side: timed.rounds for side, timed in times.items()}
    return Case(name, mine / theirs, cells, None, {"seconds": seconds, **raw})


def _experts(tokens: int, device: torch.device, quick: bool) -> Case:
    hidden, inner, experts = (64, 32, 4) if device.type == "cpu" else (2048, 4096, 16)
    x, up, down = (
        torch.randn(shape, dtype=torch.bfloat16, device=device) * shape[-1] ** -0.5
        for shape in ((tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner))
    )
    weights, ids = torch.softmax(torch.randn(tokens, experts, device=device), -1).topk(2, -1)
    call = torch.ops.dlinfer.fused_moe
    sides = {
        "dlinfer": recorded(lambda: call(x, up, down, weights, ids), device),
        "reference": lambda: REFERENCE["fused_moe"](x, up, down, weights, ids),
    }
    times = in_turn(sides, device, 3 if quick else 7)
    return _against(f"experts, {tokens} tokens, 2 of {experts}, {hidden} x {inner}", times, "reference", {})


def _quantised(tokens: int, device: torch.device, quick: bool) -> Iterator[Case]:
    size, features = (64, 48) if device.type == "cpu" else (4096, 8192)
    x = torch.randn(tokens, size, dtype=torch.bfloat16, device=device)
    weight = torch.randn(features, size, dtype=torch.bfloat16, device=device)
    number, scale = ops.dynamic_quant(weight, torch.int8, "PER_TOKEN")
    packed = torch.randint(-(2**31), 2**31 - 1, (size, features // 8), dtype=torch.int32, device=device)
    group = 16 if device.type == "cpu" else 128
    scales = torch.rand(size // group, features, dtype=torch.bfloat16, device=device)
    plain = recorded(lambda: F.linear(x, weight), device)

    def eight() -> Tensor:
        rows, row_scale = ops.dynamic_quant(x, torch.int8, "PER_TOKEN")
        return ops.linear_w8a8(rows, number, row_scale, scale, torch.bfloat16, torch.int8)

    def four() -> Tensor:
        return torch.ops.dlinfer.weight_quant_matmul(x, packed, scales, None, None, group)

    for name, work in (("w8a8", eight), ("4-bit weights", four)):
        times = in_turn({"dlinfer": recorded(work, device), "bf16": plain}, device, 3 if quick else 11)
        yield _against(f"{name}, {tokens} tokens, {size} x {features}", times, "bf16", {})


def _cases(options: Options, memory: dict[str, float]) -> Iterator[Case]:
    device = torch.device(options.device)
    tiny = device.type == "cpu"
    best = max(memory.values())
    for shape in (TINY,) if tiny else DECODES[:2] if options.quick else DECODES:
        options.say(f"decode attention {shape.name} ...")
        yield _decode_case(shape, best, device, options.quick)
    yield from dlinfer_gpu_llama.cases(options)
    for shape in (TINY,) if tiny else PREFILLS[:1] if options.quick else PREFILLS:
        options.say(f"prefill attention {shape.name} ...")
        yield _prefill_case(shape, device, options.quick)
    for tokens in (3,) if tiny else (32, 2048):
        options.say(f"experts and quantised products, {tokens} tokens ...")
        yield _experts(tokens, device, options.quick)
        yield from _quantised(tokens, device, options.quick)


def measure(options: Options) -> Report:
    device = torch.device(options.device)
    torch.manual_seed(0)
    with torch.inference_mode():
        memory = bandwidth(device, options.quick)
        options.say(", ".join(f"memory, {name}: {rate / 1e9:.0f} GB/s" for name, rate in memory.items()))
        found = list(_cases(options, memory))
    notes = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else options.device,
        "vendor": served_by("paged_decode_attention", device.type).name,
        "bandwidth_bytes_per_second": memory,
        "quick": options.quick,
        "beside": "sdpa, transformers, the reference, or a bf16 product",
    }
    title = f"dlinfer on {notes['device']}; memory {memory['copy'] / 1e9:.0f} GB/s copied, {memory['read'] / 1e9:.0f} GB/s read"
    return Report(title, ["dlinfer", "beside", "reached"], found, notes)


if __name__ == "__main__":
    import run

    run.main(["dlinfer_gpu", *sys.argv[1:]])
