"""Which tiles are fastest: tries shapes for the kernels of the vendor triton, one table entry after the other.

What it finds goes into `src/dlinfer/vendors/triton/tables.py` by hand. The first column is the time with the entry that is there
now; a figure above 1 says how much a better one would bring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context

import torch
from torch import Tensor

from dlinfer import ops
from gpu_timing import Work, in_turn, recorded
from report import Case, Options, Report

COMPILERS = 12
Choice = tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """One entry of a table, the work that uses it, and what else it could be: fields of a tile, or programs for decode."""

    entry: str
    build: Callable[[torch.device], Work]
    choices: tuple[Choice, ...]
    programs: tuple[int, ...] = field(default=(0,))


def _bf16(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).mul_(shape[-1] ** -0.5).to(torch.bfloat16)


def _decode(context: int, size: int, bits: int = 0) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        batch, heads, kv_heads, block, layers = 32, 32, 8, 64, 4
        blocks = batch * context // block
        table = torch.randperm(blocks, device=device).view(batch, -1).to(torch.int32)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
        query = _bf16(batch, heads, size, device=device)
        caches = [[_bf16(blocks, block, kv_heads, size, device=device) for _ in "kv"] for _ in range(layers)]
        scales = torch.full((2,), 0.01, device=device) if bits else None
        if bits:
            caches = [[(cache * 100).to(torch.int8) for cache in pair] for pair in caches]

        def work() -> None:
            for key, value in caches:
                ops.paged_decode_attention(
                    query, key, value, table, block, None, lengths, context, heads, kv_heads,
                    kv_scales=scales, quant_bits=bits,
                )  # fmt: skip

        return work

    return build


def _prefill(size: int) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        batch, context, heads, kv_heads, block = 4, 2048, 32, 8, 64
        blocks = batch * context // block
        table = torch.randperm(blocks, device=device).view(batch, -1).to(torch.int32)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
        query = _bf16(batch * context, heads, size, device=device)
        key, value = (_bf16(blocks, block, kv_heads, size, device=device) for _ in "kv")
        return lambda: ops.paged_prefill_attention(
            query, None, None, key, value, table, block, lengths.cumsum(0), lengths, context, context, heads, kv_heads, None
        )  # fmt: skip

    return build


def _eight_bits(tokens: int) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        x, x_scale = ops.dynamic_quant(_bf16(tokens, 4096, device=device), torch.int8, "PER_TOKEN")
        weight, scale = ops.dynamic_quant(_bf16(8192, 4096, device=device), torch.int8, "PER_TOKEN")
        return lambda: ops.linear_w8a8(x, weight, x_scale, scale, torch.bfloat16, torch.int8)

    return build


def _four_bits(tokens: int) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        x = _bf16(tokens, 4096, device=device)
        weight = torch.randint(-(2**31), 2**31 - 1, (4096, 1024), dtype=torch.int32, device=device)
        scale = _bf16(32, 8192, device=device)
        return lambda: torch.ops.dlinfer.weight_quant_matmul(x, weight, scale, None, None, 128)

    return build


def _experts(tokens: int) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        x = _bf16(tokens, 2048, device=device)
        up, down = _bf16(16, 8192, 2048, device=device), _bf16(16, 2048, 4096, device=device)
        weights, ids = torch.softmax(torch.randn(tokens, 16, device=device), -1).topk(2, -1)
        return lambda: torch.ops.dlinfer.fused_moe(x, up, down, weights, ids)

    return build


_DECODE_TILES = (
    (16, 64, 0, 1, 5), (16, 32, 0, 2, 5), (16, 64, 0, 2, 3), (16, 64, 0, 2, 5), (16, 64, 0, 2, 7), (16, 64, 0, 4, 3),
    (16, 64, 0, 4, 5), (16, 128, 0, 4, 2), (16, 128, 0, 4, 3),
)  # fmt: skip
_BYTE_TILES = tuple(
    (16, keys, 0, warps, stages)
    for keys, warps, stages in product((32, 64, 128), (2, 4, 8), (3, 5))
    if keys * stages < 640
)
_PREFILL_TILES = (
    (128, 64, 0, 4, 3), (128, 64, 0, 4, 5), (128, 32, 0, 4, 5), (128, 32, 0, 8, 5), (128, 64, 0, 8, 5), (64, 32, 0, 4, 5),
    (64, 64, 0, 4, 3), (64, 64, 0, 4, 4), (64, 64, 0, 4, 5),
)  # fmt: skip
_FLAT_PRODUCTS = (
    (32, 64, 128, 8, 4),
    (32, 32, 256, 4, 4),
    (32, 64, 256, 4, 3),
    (32, 32, 256, 2, 5),
    (32, 64, 256, 8, 3),
)
_DEEP_PRODUCTS = ((128, 128, 128, 8, 3), (128, 128, 128, 4, 3), (128, 128, 128, 8, 4), (128, 256, 128, 8, 3))
_FLAT_WEIGHTS = (
    (32, 64, 64, 4, 3), (32, 128, 64, 4, 3), (32, 64, 128, 4, 3), (32, 32, 128, 4, 3), (32, 128, 32, 4, 4),
    (32, 128, 128, 8, 3), (32, 64, 64, 2, 3),
)  # fmt: skip
_FLAT_EXPERTS = ((16, 64, 128, 4, 3), (16, 32, 256, 4, 3), (16, 64, 64, 4, 5), (16, 128, 64, 4, 4))
_DEEP_EXPERTS = ((128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 64, 64, 4, 3), (128, 128, 64, 4, 3))

SUBJECTS = {
    "decode, 2048 x 64": Subject("decode", _decode(2048, 64), _DECODE_TILES, (1, 2, 3, 4)),
    "decode, 8192 x 64": Subject("decode", _decode(8192, 64), _DECODE_TILES, (1, 2, 3, 4)),
    "decode, 2048 x 128": Subject("decode", _decode(2048, 128), _DECODE_TILES, (1, 2, 3, 4)),
    "decode, 4096 x 128, 8 bits": Subject("decode", _decode(4096, 128, 8), _BYTE_TILES, (1, 2, 4, 8)),
    "prefill, 64": Subject("prefill", _prefill(64), _PREFILL_TILES),
    "prefill, 128": Subject("prefill", _prefill(128), _PREFILL_TILES),
    "w8a8, 32 tokens": Subject("product", _eight_bits(32), _FLAT_PRODUCTS),
    "w8a8, 2048 tokens": Subject("product", _eight_bits(2048), _DEEP_PRODUCTS),
    "4 bits, 32 tokens": Subject("weight", _four_bits(32), _FLAT_WEIGHTS),
    "experts, 32 tokens": Subject("experts", _experts(32), _FLAT_EXPERTS),
    "experts, 2048 tokens": Subject("experts", _experts(2048), _DEEP_EXPERTS),
}


class _Choosing:
    """The table with one entry replaced, for as long as it is entered."""

    def __init__(self, entry: str, choice: Choice | None, programs: int) -> None:
        self._entry, self._choice, self._programs = entry, choice, programs

    def __enter__(self) -> None:
        from dlinfer.vendors.triton import tables

        self._before = (getattr(tables, self._entry), tables.PROGRAMS)
        if self._choice is not None:
            tile = tables.Tile(*self._choice)
            setattr(tables, self._entry, lambda *_: tile)
        tables.PROGRAMS = self._programs or tables.PROGRAMS

    def __exit__(self, *exception: object) -> None:
        from dlinfer.vendors.triton import tables

        setattr(tables, self._entry, self._before[0])
        tables.PROGRAMS = self._before[1]


def compile_once(name: str, choice: Choice) -> str:
    """Runs in another process: compiled kernels are kept on disk for all of them. Gives what went wrong."""
    subject = SUBJECTS[name]
    try:
        with torch.inference_mode(), _Choosing(subject.entry, choice, 0):
            subject.build(torch.device("cuda"))()
            torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:120]}"
    return ""


def _timed(subject: Subject, device: torch.device, failed: set[Choice]) -> Iterator[tuple[str, float]]:
    work = subject.build(device)
    for choice, programs in ((None, 0), *product(subject.choices, subject.programs)):
        if choice in failed:
            continue
        with _Choosing(subject.entry, choice, programs):
            seconds = in_turn({"": recorded(work, device)}, device, 3, 0.004)[""].median
        label = "now" if choice is None else f"{choice}" + (f", {programs} programs" if programs else "")
        yield label, seconds


def _case(name: str, options: Options, failures: dict[Choice, str]) -> Case:
    options.say(f"{name} ...")
    times = dict(_timed(SUBJECTS[name], torch.device(options.device), set(failures)))
    now = times.pop("now")
    ranked = sorted(times.items(), key=lambda pair: pair[1])
    best = [f"{label}: {seconds * 1e6:.1f}" for label, seconds in ranked[:3]]
    cells = [f"{now * 1e6:.1f} us", "\n".join(best)]
    failed = {str(choice): reason for choice, reason in failures.items()}
    return Case(
        name, now / ranked[0][1], cells, None, {"now": now, "seconds": dict(ranked), "failed": failed}
    )


def measure(options: Options) -> Report:
    if torch.device(options.device).type != "cuda":
        raise SystemExit("dlinfer_gpu_tiles: give --device cuda: tiles are tried on a GPU")
    pairs = [(name, choice) for name, subject in SUBJECTS.items() for choice in subject.choices]
    options.say(f"compiling {len(pairs)} kernels ...")
    failures: dict[str, dict[Choice, str]] = {name: {} for name in SUBJECTS}
    with ProcessPoolExecutor(COMPILERS, mp_context=get_context("spawn")) as pool:
        for (name, choice), problem in zip(
            pairs, pool.map(compile_once, *zip(*pairs, strict=True)), strict=True
        ):
            if problem:
                failures[name][choice] = problem
    with torch.inference_mode():
        found = [_case(name, options, failures[name]) for name in SUBJECTS]
    return Report("Tiles: what the table has, and what would be fastest", ["now", "best, us"], found)


if __name__ == "__main__":
    import run

    run.main(["dlinfer_gpu_tiles", *sys.argv[1:]])
