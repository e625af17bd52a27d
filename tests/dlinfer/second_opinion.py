"""The operators once more, in NumPy and float64, one element after the other, written from the documentation alone.

Shares no code and no idea with src/dlinfer/reference: no batching, no masks, no broadcasting over heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Given = dict[str, Any]
Array = Any


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    parts = [np.exp(score - top) for score in scores]
    return [part / sum(parts) for part in parts]


def _slot(g: Given, sequence: int, position: int, cache: str) -> tuple[int, int]:
    size = g[cache].shape[1]
    return int(g["block_table"][sequence][position // size]), position % size


def _element(g: Given, cache: str, sequence: int, position: int, head: int, side: int) -> Array:
    """One key or value out of a paged cache, restored."""
    block, row = _slot(g, sequence, position, cache)
    stored = g[cache][block, row, head]
    bits = g.get("quant_bits", 0)
    if not bits:
        return stored.astype(np.float64)
    if bits == 4:
        stored = np.array([int(b) % 16 for b in stored] + [int(b) // 16 for b in stored])
    heads, size = g[cache].shape[2], len(stored)

    def parameter(name: str, default: float) -> Array:
        if g.get(name) is None:
            return np.full(size, default)
        flat = np.asarray(g[name][side], dtype=np.float64).reshape(-1)
        if flat.size == 1:
            return np.full(size, flat[0])
        return np.full(size, flat[head]) if flat.size == heads else flat[head * size : (head + 1) * size]

    return (stored.astype(np.float64) - parameter("kv_zeros", 0.0)) * parameter("kv_scales", 1.0)


def _one(
    g: Given, query: Array, head: int, position: int, row: int, keys: list[Array], values: list[Array]
) -> Array:
    """One head of one query that stands at `position`."""
    scores: list[float] = []
    seen: list[int] = []
    for other, key in enumerate(keys):
        score = float(query @ key) * g["softmax_scale"]
        cap = g.get("soft_cap", 0.0)
        if cap:
            score = cap * np.tanh(score / cap)
        if g.get("alibi_slopes") is not None:
            score -= float(g["alibi_slopes"][head]) * abs(position - other)
        if g.get("causal", True) and other > position:
            continue
        if g.get("window_left", -1) >= 0 and position - other > g["window_left"]:
            continue
        if g.get("window_right", -1) >= 0 and other - position > g["window_right"]:
            continue
        mask = g.get("mask")
        if mask is not None:
            entry = mask[row][other]
            if mask.dtype == bool:
                if entry:
                    continue
            elif entry == -np.inf:
                continue
            else:
                score += float(entry)
        scores.append(score)
        seen.append(other)
    if not seen:
        return np.zeros(len(values[0]) if values else g["attn_output"].shape[-1])
    return sum(weight * values[other] for weight, other in zip(_softmax(scores), seen, strict=True))


def _over(g: Given, news: list[int], kvs: list[int], read: Any) -> Array:
    """All sequences; `read(which, sequence, position, head)` gives a key (0) or a value (1)."""
    heads, kv_heads = g["query"].shape[1], g["kv_heads"]
    result = np.zeros(g["attn_output"].shape)
    row = 0
    for sequence, (new, length) in enumerate(zip(news, kvs, strict=True)):
        for number in range(new):
            for head in range(heads):
                shared = head // (heads // kv_heads)
                keys = [read(0, sequence, position, shared) for position in range(length)]
                values = [read(1, sequence, position, shared) for position in range(length)]
                query = g["query"][row, head].astype(np.float64)
                result[row, head] = _one(g, query, head, length - new + number, row, keys, values)
            row += 1
    return result


def prefill_attention(g: Given) -> Array:
    kvs = [int(length) for length in g["kv_lengths"]]
    starts = np.cumsum([0, *kvs])

    def read(which: int, sequence: int, position: int, head: int) -> Array:
        return g["value" if which else "key"][starts[sequence] + position, head].astype(np.float64)

    return _over({**g, "kv_heads": g["key"].shape[1]}, list(np.diff(g["cu_seqlens_q"])), kvs, read)


def paged_prefill_attention(g: Given) -> Array:
    def read(which: int, sequence: int, position: int, head: int) -> Array:
        return _element(g, "value_cache" if which else "key_cache", sequence, position, head, which)

    news, kvs = list(np.diff(g["cu_seqlens_q"])), [int(length) for length in g["kv_lengths"]]
    return _over({**g, "kv_heads": g["key_cache"].shape[2]}, news, kvs, read)


def paged_decode_attention(g: Given) -> Array:
    batch = len(g["kv_lengths"])
    new = len(g["query"]) // batch
    return paged_prefill_attention({**g, "cu_seqlens_q": [new * i for i in range(batch + 1)]})


def sparse_flash_attention(g: Given) -> Array:
    result = np.zeros((*g["query"].shape[:2], g["value"].shape[3]))
    row = 0
    for sequence, new in enumerate(np.diff(g["cu_seqlens_q"])):
        for _ in range(new):
            chosen = [int(position) for position in g["sparse_indices"][row, 0] if position >= 0]
            for head in range(g["query"].shape[1] if chosen else 0):
                scores = []
                for position in chosen:
                    score = (
                        g["query"][row, head].astype(np.float64)
                        @ g["key"][(*_slot(g, sequence, position, "key"), 0)]
                    )
                    if g.get("query_rope") is not None:
                        rope = g["key_rope"][(*_slot(g, sequence, position, "key"), 0)]
                        score += g["query_rope"][row, head].astype(np.float64) @ rope
                    scores.append(float(score) * g["softmax_scale"])
                values = [g["value"][(*_slot(g, sequence, position, "key"), 0)] for position in chosen]
                result[row, head] = sum(w * v for w, v in zip(_softmax(scores), values, strict=True))
            row += 1
    return result


def _silu(value: Array) -> Array:
    return value / (1 + np.exp(-value))


def fused_moe(g: Given) -> Array:
    tokens, hidden = g["hidden_states"].shape
    result = np.zeros((tokens, hidden))
    for token in range(tokens):
        weights = g["topk_weights"][token].astype(np.float64)
        total = weights.sum() if g.get("renormalize") else 1.0
        for weight, expert in zip(weights, g["topk_ids"][token], strict=True):
            here = int(expert) - g.get("first_expert", 0)
            if 0 <= here < len(g["gate_up_weights"]):
                inner = g["gate_up_weights"][here].astype(np.float64) @ g["hidden_states"][token]
                half = len(inner) // 2
                out = g["down_weights"][here].astype(np.float64) @ (_silu(inner[:half]) * inner[half:])
                result[token] += weight / total * out
    return result


def weight_quant_matmul(g: Given) -> Array:
    packed = g["x2"].dtype == np.int32
    rows, features = g["x2"].shape[0], g["x2"].shape[1] * (8 if packed else 1)
    awq = g.get("offset") is not None and g["offset"].dtype == np.int32
    group = g.get("group_size") or rows
    scale = g["scale"].reshape(-1, features)
    order = [0, 4, 1, 5, 2, 6, 3, 7] if awq else list(range(8))  # in which nibble an element is

    def nibble(words: Array, column: int) -> int:
        return (int(words[column // 8]) >> (4 * order[column % 8])) % 16

    weight = np.zeros((rows, features))
    for row in range(rows):
        for column in range(features):
            number = nibble(g["x2"][row], column) if packed else int(g["x2"][row, column])
            if packed and not awq and number >= 8:
                number -= 16
            if awq:
                number -= nibble(g["offset"][row // group], column)
            elif g.get("offset") is not None:
                number = number + float(g["offset"].reshape(-1, features)[row // group, column])
            weight[row, column] = number * float(scale[row // group, column])
    result = g["x1"].astype(np.float64) @ weight
    return result if g.get("bias") is None else result + g["bias"]


def apply_rotary_pos_emb(g: Given) -> tuple[Array, Array]:
    def turned(states: Array) -> Array:
        heads, size = states.shape[-2:]
        rotary = g["cos"].shape[-1]
        cos, sin = (g[name].reshape(-1, rotary).astype(np.float64) for name in ("cos", "sin"))
        result = states.reshape(-1, heads, size).astype(np.float64).copy()
        for token in range(len(result)):
            for head in range(heads):
                for i in range(rotary // 2):
                    j = i + rotary // 2
                    pair = complex(result[token, head, i], result[token, head, j])
                    pair *= complex(cos[token, i], sin[token, i])
                    result[token, head, i], result[token, head, j] = pair.real, pair.imag
        return result.reshape(states.shape)

    return turned(g["query"]), turned(g["key"])
