"""The accuracy standards that others use, each as a function of the result, the reference and the exact result.

Written from their published definitions; the thresholds are theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor
Standard = Callable[[Tensor, Tensor, Tensor, str], bool]

_FIXED = {torch.float16: 1e-4, torch.bfloat16: 1e-3, torch.float32: 1e-5}
_ASSERT_CLOSE = {torch.float32: (1.3e-6, 1e-5), torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}


def _close(d: Tensor, expected: Tensor, rtol: float, atol: float) -> bool:
    return torch.allclose(d.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else float(torch.equal(a, b))


def fixed(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    size = _FIXED[d.dtype]
    return _close(d, t, size, size)


def assert_close(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    rtol, atol = _ASSERT_CLOSE[d.dtype]
    return _close(d, r, rtol, atol)


def one_in_a_thousand(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    return _close(d, r, 1e-3, 1e-3)


def run_compare(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    """Cosine of 0.9 at least, and a largest difference of 1 at most (their "warning" line)."""
    return _cosine(d, r) > 0.9 and float((d.double() - r.double()).abs().max()) < 1.0


def stage_one(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    difference = (d.double() - r.double()).abs()
    relative = difference / (r.double().abs() + 1e-7)
    small = float((relative < 0.01).double().mean()) >= 0.99
    return (_cosine(d, r) >= 0.99 and small) or float(difference.max()) < 1e-3


def dual(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    """Errors beside those of a trusted device: largest relative 10 times, mean relative and RMSE twice."""
    size = t.abs() + 1e-7
    mine, theirs = (d.double() - t).abs(), (r.double() - t).abs()
    pairs = (
        (float((mine / size).max()), float((theirs / size).max()), 10),
        (float((mine / size).mean()), float((theirs / size).mean()), 2),
        (_rms(mine), _rms(theirs), 2),
    )
    floor = 2.0**-24 if d.dtype == torch.float32 else 2.0**-11
    return all(a <= ratio * max(b, floor) for a, b, ratio in pairs)


def dynamo(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    slack = 1e-4 if d.dtype == torch.float32 else 1e-3
    return _rms(d.double() - t) <= 2 * _rms(r.double() - t) + slack / 10


def nmse(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    power = float(t.square().mean())
    limit = 5e-4 if category == "matmul" else 1e-7
    return float((d.double() - t).square().mean()) <= limit * power if power else not bool(d.any())


def flash_attention(d: Tensor, r: Tensor, t: Tensor, category: str) -> bool:
    return float((d.double() - t).abs().max()) <= 2 * float((r.double() - t).abs().max()) + 1e-5


STANDARDS: dict[str, Standard] = {
    "fixed atol=rtol (op_tools)": fixed,
    "assert_close": assert_close,
    "torch_musa 1e-3": one_in_a_thousand,
    "msprobe run compare": run_compare,
    "msprobe stage 1": stage_one,
    "msprobe dual benchmark": dual,
    "TorchDynamo RMSE": dynamo,
    "ggml NMSE": nmse,
    "FlashAttention rule": flash_attention,
}
