"""What changes the scores of attention, in the words of the call forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError

Slopes = Tensor | Sequence[float] | None
Window = int | tuple[int, int] | None


def tail(
    name: str, query: Tensor, scale: float | None, slopes: Slopes, window: Window, soft_cap: float | None
) -> tuple[float, Tensor | None, int, int, float]:
    """softmax_scale, alibi_slopes, window_left, window_right, soft_cap. A window of n keys counts the query's own."""
    if slopes is not None and not isinstance(slopes, Tensor):
        slopes = torch.tensor(list(slopes), dtype=torch.float32, device=query.device)
    if window is None:
        left, right = -1, -1
    elif isinstance(window, int):
        left = right = window - 1 if window > 0 else -1
    else:
        left, right = _sides(name, window)
    return (query.shape[-1] ** -0.5 if scale is None else scale), slopes, left, right, soft_cap or 0.0


def _sides(name: str, window: Sequence[int]) -> tuple[int, int]:
    pair = isinstance(window, (tuple, list)) and len(window) == 2
    if not pair or not (isinstance(window[0], int) and isinstance(window[1], int)):
        raise DlinferArgumentError(
            name,
            "window_size",
            f"is {window!r}, expected a whole number of keys, or (left, right) as places on both sides",
        )
    return window[0], window[1]
