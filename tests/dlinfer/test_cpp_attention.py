"""cpp's attention, caches and rotary embedding, beyond what the conformance cases try: long, many, strange and hostile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError
from dlinfer.reference import KERNELS
from dlinfer.vendors.cpp import VENDOR

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

HALF_DTYPES = (torch.bfloat16, torch.float16)
OWN = (
    "paged_decode_attention", "paged_prefill_attention", "prefill_attention", "fused_attention", "incre_flash_attention",
    "fill_kv_cache", "fill_contiguous_kvcache", "get_cache_len", "apply_rotary_pos_emb", "apply_rotary_pos_emb_interleaved",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(11)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def cumulative(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _pages(
    lengths: list[int], block_size: int, kv_heads: int, size: int, size_v: int, dtype: torch.dtype
) -> Any:
    """Caches, and a table whose blocks lie anywhere in them."""
    used = [-(-length // block_size) for length in lengths]
    order, table, start = torch.randperm(sum(used)), torch.full((len(lengths), max([*used, 1])), -1), 0
    for row, count in enumerate(used):
        table[row, :count] = order[start : start + count]
        start += count
    key = torch.randn(max(sum(used), 1), block_size, kv_heads, size, dtype=dtype)
    value = torch.randn(max(sum(used), 1), block_size, kv_heads, size_v, dtype=dtype)
    return key, value, table.int(), torch.tensor(lengths)


def _exactly(name: str, given: list[Any], output: int | None = None) -> Tensor:
    """The reference in float64."""
    upcast = [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given]
    if output is not None:
        upcast[output] = torch.empty_like(upcast[output])
    result = KERNELS[name](*upcast)
    exact: Tensor = result if output is None else upcast[output]
    return exact


def _close(got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    bound = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    assert bool(((got.double() - exact).abs() <= bound * (1 + exact.abs())).all()), (
        (got.double() - exact).abs().max()
    )


def test_the_library_serves_the_family() -> None:
    assert set(OWN) <= set(VENDOR.kernels) and VENDOR.values == "own"


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "size_v", "new"),
    [(9, 3, 64, 64, 1), (4, 4, 80, 80, 1), (32, 1, 40, 24, 1), (8, 2, 128, 128, 3), (2, 1, 576, 512, 2)],
)
def test_decode_of_long_contexts(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, size_v: int, new: int, threads: int
) -> None:
    """Several tiles and ranges of keys, heads of sizes that do not fill vectors, few rows and many."""
    lengths = [new, 64, 65, 1024, 1025, 2500, 0]
    key, value, table, kv_lengths = _pages(lengths, 16, kv_heads, size, size_v, dtype)
    query = torch.randn(len(lengths) * new, heads, size, dtype=dtype)
    given = [
        query,
        key,
        value,
        table,
        kv_lengths,
        2500,
        torch.empty(len(query), heads, size_v, dtype=dtype),
        size**-0.5,
    ]
    _cpp.paged_decode_attention(*given)
    _close(given[6], _exactly("paged_decode_attention", given, 6), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize("extra", ["causal", "window", "both sides", "alibi", "cap", "mask", "hides"])
def test_prefill_of_many_tokens(dtype: torch.dtype, extra: str, threads: int) -> None:
    heads, kv_heads, size, lengths = 6, 2, 48, [300, 7, 129]
    tokens = sum(lengths)
    query, key = (
        torch.randn(tokens, heads, size, dtype=dtype),
        torch.randn(tokens, kv_heads, size, dtype=dtype),
    )
    value, output = (
        torch.randn(tokens, kv_heads, 32, dtype=dtype),
        torch.empty(tokens, heads, 32, dtype=dtype),
    )
    mask: Tensor | None = torch.randn(tokens, 300) if extra == "mask" else None
    if extra == "hides":
        mask = torch.rand(tokens, 310) < 0.7
    slopes = 2.0 ** -torch.arange(1.0, heads + 1) if extra == "alibi" else None
    left, right = {"window": (40, -1), "both sides": (70, 3)}.get(extra, (-1, -1))
    cu_seqlens_q, kv_lengths = torch.tensor([0, *lengths]).cumsum(0), torch.tensor(lengths)
    given = [
        query,
        key,
        value,
        cu_seqlens_q,
        kv_lengths,
        300,
        output,
        0.2,
        extra != "both sides",
        mask,
        slopes,
        left,
        right,
    ]
    given.append(4.0 if extra == "cap" else 0.0)
    _cpp.prefill_attention(*given)
    _close(output, _exactly("prefill_attention", given, 6), dtype)


def test_a_sequence_gets_the_same_bits_in_any_batch_and_with_any_threads(threads: int) -> None:
    """So a request is answered alike whether it is served alone or beside others."""
    key, value, table, kv_lengths = _pages([700, 3000, 90, 1], 16, 3, 64, 64, torch.float32)
    query, output = torch.randn(4, 9, 64), torch.empty(4, 9, 64)
    _cpp.paged_decode_attention(query, key, value, table, kv_lengths, 0, output, 0.125)
    torch.set_num_threads(1)
    for i in range(4):
        alone = torch.empty(1, 9, 64)
        _cpp.paged_decode_attention(
            query[i : i + 1], key, value, table[i : i + 1], kv_lengths[i : i + 1], 0, alone, 0.125
        )
        assert torch.equal(alone[0], output[i])


def test_a_prompt_gets_the_same_bits_beside_others_with_many_threads() -> None:
    query, key, value = torch.randn(500, 6, 32), torch.randn(500, 2, 32), torch.randn(500, 2, 32)
    both, alone = torch.empty_like(query), torch.empty(200, 6, 32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        lengths = torch.tensor([300, 200])
        _cpp.prefill_attention(query, key, value, cumulative(lengths), lengths, 300, both, 0.2)
    finally:
        torch.set_num_threads(before)
    lengths = torch.tensor([200])
    _cpp.prefill_attention(query[300:], key[300:], value[300:], cumulative(lengths), lengths, 200, alone, 0.2)
    assert torch.equal(alone, both[300:])


def test_the_output_may_lie_on_the_query() -> None:
    query, key, value = torch.randn(400, 8, 32), torch.randn(400, 2, 32), torch.randn(400, 2, 16)
    lengths, apart = torch.tensor([400]), torch.empty(400, 8, 16)
    _cpp.prefill_attention(query, key, value, cumulative(lengths), lengths, 400, apart, 0.2)
    _cpp.prefill_attention(query, key, value, cumulative(lengths), lengths, 400, query[..., :16], 0.2)
    assert torch.equal(query[..., :16], apart)


def test_nan_stays_and_what_sees_nothing_is_zero() -> None:
    query, key, value = torch.randn(70, 2, 16), torch.randn(70, 1, 16), torch.randn(70, 1, 16)
    query[3, 0, 0] = torch.nan
    key[60] = torch.inf
    mask = torch.zeros(70, 70, dtype=torch.bool)
    mask[5], mask[61:, 60] = True, True
    lengths, output = torch.tensor([70]), torch.empty(70, 2, 16)
    _cpp.prefill_attention(query, key, value, cumulative(lengths), lengths, 70, output, 1.0, True, mask)
    nan = output.isnan().any(-1)
    assert nan[3, 0] and not nan[3, 1] and bool(nan[60].all()) and int(nan.sum()) == 3
    assert not output[5].any()


@pytest.mark.parametrize("vendor", ["cpp", "ref"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize("heads", [1, 8])
def test_what_a_query_does_not_see_has_no_part_in_its_result(
    vendor: str, dtype: torch.dtype, heads: int
) -> None:
    """Neither behind it, nor before its window, nor where a mask hides it; of few tokens, and of many with a long context."""
    for tokens, length in ((2, 1100), (300, 300), (5, 70)):
        query = torch.randn(tokens, heads, 24, dtype=dtype)
        key, value = torch.randn(length, 1, 24, dtype=dtype), torch.randn(length, 1, 20, dtype=dtype)
        cu_seqlens_q, kv_lengths = torch.tensor([0, tokens]), torch.tensor([length])
        position, mask = length - tokens + torch.arange(tokens), torch.zeros(tokens, length, dtype=torch.bool)
        mask[:, length - 1] = True
        last = length - 1
        for hidden, window, positions in (
            (None, -1, [last + 2 - tokens, last]),
            (None, 30, [0, last - 39, last]),
            (mask, -1, [last]),
        ):
            bad, bad_key, bad_value = torch.tensor(positions), key.clone(), value.clone()
            bad_key[bad], bad_value[bad] = torch.nan, torch.inf
            outputs = [torch.empty(tokens, heads, 20, dtype=dtype) for _ in range(2)]
            for output, *sides in zip(outputs, (key, bad_key), (value, bad_value), strict=True):
                given = [
                    query,
                    *sides,
                    cu_seqlens_q,
                    kv_lengths,
                    tokens,
                    output,
                    0.2,
                    True,
                    hidden,
                    None,
                    window,
                ]
                (_cpp.prefill_attention if vendor == "cpp" else KERNELS["prefill_attention"])(*given)
            seen = bad <= position[:, None]
            if window >= 0:
                seen &= bad >= position[:, None] - window
            if hidden is not None:
                seen &= ~mask[:, bad]
            clean = ~seen.any(-1)
            assert bool(clean.any()) and torch.equal(outputs[1][clean], outputs[0][clean])
            assert bool(outputs[1][~clean].isnan().all())


@pytest.mark.parametrize("form", ["float64", "elements apart", "no elements"])
def test_forms_without_a_kernel_are_served_by_the_reference(form: str) -> None:
    dtype = torch.float64 if form == "float64" else torch.float32
    key, value, table, kv_lengths = _pages([9, 5], 4, 2, 8, 8, dtype)
    query = torch.randn(2, 4, 8, dtype=dtype)
    if form == "elements apart":
        key = key.transpose(1, 3).contiguous().transpose(1, 3)
    if form == "no elements":
        value = value[..., :0]
    output, wanted = (
        torch.full((2, 4, value.shape[-1]), 7.0, dtype=dtype),
        torch.empty(2, 4, value.shape[-1], dtype=dtype),
    )
    _cpp.paged_decode_attention(query, key, value, table, kv_lengths, 0, output, 0.3)
    KERNELS["paged_decode_attention"](query, key, value, table, kv_lengths, 0, wanted, 0.3)
    assert torch.equal(output, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 3, 64), (2, 5, 3, 20), (2, 2, 2, 3, 48)])
def test_rotary_takes_views_and_tables_of_any_dtype(
    dtype: torch.dtype, table: torch.dtype, shape: tuple[int, ...]
) -> None:
    packed = torch.randn(*shape[:-1], shape[-1] + 8, dtype=dtype)[..., 8:]
    query = packed.transpose(-3, -2).contiguous().transpose(-3, -2)
    rows = query.numel() // (shape[-1] * shape[-2])
    cos, sin = torch.randn(rows, shape[-1] - 4, dtype=table), torch.randn(rows, shape[-1] - 4, dtype=table)
    for one in (query, packed):
        got = _cpp.apply_rotary_pos_emb(one, one[..., :1, :], cos, sin)
        for mine, states in zip(got, (one, one[..., :1, :]), strict=True):
            exact = _exactly("apply_rotary_pos_emb", [states, states, cos, sin])[0]
            assert mine.is_contiguous()
            _close(mine, exact, dtype)


def test_a_slot_is_written_by_its_token_alone() -> None:
    cache = torch.zeros(40, 7, 2, 24)
    states = torch.randn(200, 2, 24)
    slots = torch.randperm(280)[:200]
    _cpp.fill_kv_cache(states, cache, None, None, slots)
    flat = cache.view(280, 2, 24)
    assert torch.equal(flat[slots], states)
    left = torch.ones(280, dtype=torch.bool)
    left[slots] = False
    assert not flat[left].any()


# ---- hostile arguments ----


def _spoiled(chance: random.Random, tensor: Tensor, low: int, high: int) -> Tensor:
    """The same numbers, some of which may be out of range or enormous."""
    found = tensor.clone()
    for _ in range(chance.choice((0, 0, 1, 2))):
        if found.numel():
            extreme = torch.iinfo(found.dtype)
            value = chance.choice(
                (low - 1, high, high + 1, -1, extreme.max, extreme.min, chance.randint(low, high))
            )
            found.view(-1)[chance.randrange(found.numel())] = max(extreme.min, min(extreme.max, value))
    return found


def _same_as_the_reference(name: str, given: list[Any], output: int | None) -> bool:
    """Runs both; True: both gave the same answer, False: the kernel refused. Anything else fails."""
    mine = list(given)
    if output is not None:
        mine[output] = given[output].clone()
    try:
        _cpp_result = getattr(_cpp, name)(*mine)
    except DlinferArgumentError as error:
        assert error.operator == name and error.argument in str(error)
        return False
    assert _cpp_result is None
    KERNELS[name](*given)
    if output is not None:
        assert torch.allclose(mine[output], given[output], rtol=1e-4, atol=1e-5)
    return True


def test_hostile_tables_lengths_and_slots_are_refused_or_right() -> None:
    """Whatever numbers tables and lengths hold: the reference's answer or an error that names the argument, never a crash."""
    chance, answers = random.Random(5), [0, 0]
    for _ in range(600):
        heads, kv_heads, size = chance.choice(((4, 2, 8), (3, 1, 17), (2, 2, 4)))
        block_size, batch = chance.choice((1, 4, 16)), chance.choice((0, 1, 3))
        lengths = [chance.choice((0, 1, 5, 33, 80)) for _ in range(batch)]
        key, value, table, kv_lengths = _pages(lengths, block_size, kv_heads, size, size, torch.float32)
        table = _spoiled(chance, table.to(chance.choice((torch.int32, torch.int64))), 0, len(key))
        kv_lengths = _spoiled(chance, kv_lengths.to(chance.choice((torch.int32, torch.int64))), 0, 90)
        queries = [chance.randint(0, length) for length in lengths]
        cu_seqlens_q = _spoiled(
            chance, torch.tensor([0, *queries], dtype=torch.int64).cumsum(0), 0, sum(queries)
        )
        new = chance.choice((1, 2))
        maximum, window = chance.choice((0, 80)), chance.choice((-1, 0, 3, 2**62))
        decode = [torch.randn(batch * new, heads, size), key, value, table, kv_lengths, maximum]
        decode += [torch.zeros(batch * new, heads, size), 0.4, None, window]
        answers[_same_as_the_reference("paged_decode_attention", decode, 6)] += 1
        rows = torch.randn(sum(queries), heads, size)
        prefill = [rows, key, value, table, cu_seqlens_q, kv_lengths, 0, maximum, torch.zeros_like(rows), 0.4]
        prefill += [chance.choice((True, False)), None, None, window, window]
        answers[_same_as_the_reference("paged_prefill_attention", prefill, 8)] += 1
        fresh = torch.randn(sum(lengths), kv_heads, size)
        given = [
            rows,
            fresh,
            fresh,
            cu_seqlens_q,
            kv_lengths,
            0,
            torch.zeros_like(rows),
            0.4,
            chance.choice((True, False)),
        ]
        answers[_same_as_the_reference("prefill_attention", given, 6)] += 1
        slots = _spoiled(chance, torch.randperm(len(key) * block_size)[:5], -1, len(key) * block_size)
        states = torch.randn(len(slots), kv_heads, size)
        if len(slots.unique()) == len(slots):
            answers[_same_as_the_reference("fill_kv_cache", [states, key, states, value, slots], None)] += 1
    assert min(answers) > 400


# ---- the device ----


@pytest.mark.device
def test_queued_work_is_waited_for() -> None:
    pytest.importorskip("torch_dipu")
    key, value, table, kv_lengths = _pages([50, 9], 8, 2, 32, 32, torch.float32)
    query, output, wanted = torch.randn(2, 4, 32), torch.empty(2, 4, 32), torch.empty(2, 4, 32)
    KERNELS["paged_decode_attention"](query, key * 2, value + 1, table, kv_lengths, 0, wanted, 0.2)
    torch.dipu.configure(**{"async": 1, "delay_us": 3000})
    try:
        there = [tensor.to("dipu") for tensor in (query, key, value, table, output)]
        _cpp.paged_decode_attention(
            there[0], there[1] * 2, there[2] + 1, there[3], kv_lengths, 0, there[4], 0.2
        )
        got = there[4].cpu()
    finally:
        torch.dipu.configure(**{"async": 0, "delay_us": 0})
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.device
def test_memory_that_the_host_cannot_reach_is_left_to_the_reference() -> None:
    pytest.importorskip("torch_dipu")
    states = torch.randn(2, 2, 8, device="dipu")
    cos = torch.randn(2, 8, device="dipu")
    assert VENDOR.serves("dipu")
    torch.dipu.configure(alias=0)
    try:
        assert not VENDOR.serves("dipu") and VENDOR.serves("cpu")
        with pytest.raises(RuntimeError, match="cannot reach the memory of dipu"):
            _cpp.apply_rotary_pos_emb(states, states, cos, cos)
    finally:
        torch.dipu.configure(alias=1)
