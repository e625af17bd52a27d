"""The references of attention against what PyTorch itself computes, and against each other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from diopi.conformance.references.attention import (
    Scoring,
    customized_attention,
    customized_packed_attention,
    dense_attention,
    dense_attention_backward,
    packed_attention,
)
from diopi.conformance.references.serving import (
    masked_softmax,
    paged_attention,
    penalized,
    penalized_flat,
    prompt_attention,
    rms_normalized,
    rms_normalized_backward,
    rotated,
    rotated_heads,
    token_scores,
    token_values,
)


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape) + sum(shape))
    )


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: object) -> torch.Tensor:
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    made: torch.Tensor = F.scaled_dot_product_attention(*heads, enable_gqa=True, **how)  # type: ignore[arg-type]
    return made.transpose(1, 2)


def test_dense_attention_is_pytorchs() -> None:
    q, k, v = _drawn(2, 5, 4, 8), _drawn(2, 7, 2, 8), _drawn(2, 7, 2, 8)
    out, lse = dense_attention(q, k, v, Scoring(0.25))
    torch.testing.assert_close(out, _sdpa(q, k, v, scale=0.25))
    assert lse is not None and lse.shape == (2, 4, 5)
    first = (k[0, :, 0] @ q[0, 3, 1] * 0.25).logsumexp(0)
    torch.testing.assert_close(lse[0, 1, 3], first)


def test_causality_is_aligned_at_the_end() -> None:
    q, k, v = _drawn(1, 2, 1, 4), _drawn(1, 5, 1, 4), _drawn(1, 5, 1, 4)
    out, _ = dense_attention(q, k, v, Scoring(0.5, causal=True))
    seen = torch.ones(2, 5, dtype=torch.bool).tril(3)
    torch.testing.assert_close(out, _sdpa(q, k, v, scale=0.5, attn_mask=seen))
    one, _ = dense_attention(q, k, v, Scoring(0.5, left=0, right=0))
    torch.testing.assert_close(one, v[:, 3:])


def test_queries_without_keys_give_zeros_and_no_logarithm_is_judged() -> None:
    q, k, v = _drawn(1, 3, 1, 4), _drawn(1, 2, 1, 4), _drawn(1, 2, 1, 4)
    out, lse = dense_attention(q, k, v, Scoring(0.5, causal=True))
    assert out is not None and lse is None
    assert out[0, 0].abs().sum() == 0
    torch.testing.assert_close(out[0, 1], v[0, 0])


def test_gradients_are_pytorchs_and_take_the_saved_output_below_float64() -> None:
    q, k, v = (t.requires_grad_() for t in (_drawn(1, 4, 2, 4), _drawn(1, 6, 1, 4), _drawn(1, 6, 1, 4)))
    out = _sdpa(q, k, v, scale=0.5)
    grad = _drawn(1, 4, 2, 4)
    expected = torch.autograd.grad(out, (q, k, v), grad)
    given = [t.detach() for t in (grad, q, k, v, out)]
    for made, right in zip(dense_attention_backward(*given, Scoring(0.5)), expected, strict=True):
        torch.testing.assert_close(made, right)
    single = [t.float() for t in given]
    exact = dense_attention_backward(*single, Scoring(0.5))
    single[4] = single[4] + 0.01
    shifted = dense_attention_backward(*single, Scoring(0.5))
    torch.testing.assert_close(exact[0], expected[0].float(), rtol=1e-4, atol=1e-5)
    assert shifted[0] is not None and exact[0] is not None
    assert (shifted[0] - exact[0]).abs().max() > 1e-4
    torch.testing.assert_close(shifted[2], exact[2])


def test_packed_sequences_are_dense_ones_side_by_side() -> None:
    q, k, v = _drawn(5, 2, 4), _drawn(7, 2, 4), _drawn(7, 2, 4)
    scoring = Scoring(0.5, causal=True)
    out, lse = packed_attention(q, k, v, [0, 2, 5], [0, 3, 7], 4, scoring)
    assert out is not None and lse is not None
    first, logarithms = dense_attention(q[None, 2:], k[None, 3:], v[None, 3:], scoring)
    assert first is not None and logarithms is not None
    torch.testing.assert_close(out[2:], first[0])
    torch.testing.assert_close(lse[1, :, :3], logarithms[0])
    assert lse[1, :, 3].abs().sum() == 0
    with_zero = customized_packed_attention(q, k, v, [0, 2, 5], [0, 3, 7], scoring)
    without = customized_packed_attention(q, k, v, [2, 5], [3, 7], scoring)
    torch.testing.assert_close(with_zero[0], out)
    torch.testing.assert_close(without[2], with_zero[2])


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "SBH"])
def test_layouts_hold_the_same_numbers(layout: str) -> None:
    def laid(t: torch.Tensor) -> torch.Tensor:
        return {"BNSD": t.transpose(1, 2), "BSH": t.flatten(2), "SBH": t.flatten(2).transpose(0, 1)}[layout]

    q, k, v = _drawn(2, 3, 4, 6), _drawn(2, 5, 2, 6), _drawn(2, 5, 2, 6)
    mask = torch.tensor([[False, True, False, False, True]] * 3)
    plain = customized_attention(q, k, v, Scoring(0.5, mask=mask), 4, "BSND")
    other = customized_attention(laid(q), laid(k), laid(v), Scoring(0.5, mask=mask), 4, layout)
    assert plain[0] is not None and other[0] is not None and plain[2] is not None and plain[3] is not None
    torch.testing.assert_close(other[0], laid(plain[0]))
    torch.testing.assert_close(plain[0], _sdpa(q, k, v, scale=0.5, attn_mask=~mask))
    lse = plain[2][..., 0] + plain[3][..., 0].log()
    torch.testing.assert_close(lse[1, 3, 2], (k[1, [0, 2, 3], 1] @ q[1, 2, 3] * 0.5).logsumexp(0))
    assert plain[2].shape == (2, 4, 3, 8)


def test_rotation_turns_pairs() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    cos, sin = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert rotated(x, cos, sin, False, False).tolist() == [[-3.0, 2.0, 1.0, 4.0]]
    assert rotated(x, cos, sin, False, True).tolist() == [[-2.0, 1.0, 3.0, 4.0]]
    assert rotated(rotated(x, cos, sin, False, True), cos, sin, True, True).tolist() == x.tolist()
    both = rotated_heads(x, cos.repeat(2)[None], sin.repeat(2)[None], 4)
    assert both.tolist() == [[-3.0, 2.0, 1.0, 4.0]]


def test_rms_norm_is_pytorchs() -> None:
    x, weight, grad = _drawn(3, 5).requires_grad_(), _drawn(5).requires_grad_(), _drawn(3, 5) + 1
    expected = F.rms_norm(x, [5], weight, 0.125)
    out, inverse = rms_normalized(x, [5], weight, None, 0.125, None)
    torch.testing.assert_close(out, expected)
    assert inverse.shape == (3, 1)
    right = torch.autograd.grad(expected, (x, weight), grad)
    made = rms_normalized_backward(grad, x.detach(), weight.detach(), None, inverse.detach().flatten(), [5])
    torch.testing.assert_close(made[0], right[0])
    torch.testing.assert_close(made[1], right[1])
    assert made[2] is None


def test_masked_softmax_hides() -> None:
    x = torch.zeros(1, 3, 3)
    assert masked_softmax(x, None, 1.0, True)[0].tolist() == [
        [1, 0, 0],
        [0.5, 0.5, 0],
        pytest.approx([1 / 3] * 3),
    ]
    mask = torch.tensor([[True, False, True]] * 2 + [[True, True, True]])
    assert masked_softmax(x, mask, 1.0, False)[0].tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_penalties() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    ids, counts, ends = torch.tensor([1, 0]), torch.tensor([2, 3]), torch.tensor([0, 1, 2])
    half, tenth = torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0])
    assert penalized(logits, half, tenth, ids, counts, ends).tolist() == [[1.0, -0.5], [-3.25, -4.0]]
    flat = penalized_flat(
        logits, torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([2.0]), ids + 2, counts
    )
    assert flat.tolist() == [[1.0, 2.0], [3 / 2 - 3 - 0.5, -8 - 2 - 0.5]]


def test_token_attention_reads_the_end_of_its_row() -> None:
    cache, q = _drawn(6, 1, 4), _drawn(1, 1, 4)
    b_loc = torch.tensor([[99, 5, 2]])
    start, length = torch.tensor([0]), torch.tensor([2])
    scores = token_scores(q, cache, b_loc, start, length, 3)
    torch.testing.assert_close(scores[0], (cache[[5, 2], 0] @ q[0, 0]) / 2)
    out = token_values(scores, cache, b_loc, start, length, 3)
    torch.testing.assert_close(out[0, 0], scores[0].softmax(0) @ cache[[5, 2], 0])


def test_pages_and_prompts_are_attention() -> None:
    q, cache = _drawn(1, 8), _drawn(4, 2, 4)  # two heads of 4; blocks of two rows with one head
    table = torch.tensor([[3, 1]])
    out = paged_attention(q, cache, cache + 1, None, [3], 2, 1, 4, table, 2)
    rows = torch.stack([cache[3, 0], cache[3, 1], cache[1, 0]])[None, :, None]
    torch.testing.assert_close(out.view(1, 1, 2, 4), _sdpa(q.view(1, 1, 2, 4), rows, rows + 1))
    prompt = _drawn(3, 8)
    made = prompt_attention(prompt, prompt, prompt, None, [2], 3, 2, 0, 4)
    two = prompt[:2].view(1, 2, 2, 4)
    torch.testing.assert_close(made[:2].view(1, 2, 2, 4), _sdpa(two, two, two))
    assert made[2].abs().sum() == 0
