"""What frameworks say about which keys are seen, as the interface says it: masks, causal or not, windows, slopes and caps."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.ops.lengths import are_lengths

_last: tuple[ref[Tensor], int] | None = None
Masks = Sequence[Tensor | None] | Tensor | None
Slopes = Tensor | Sequence[float] | None
Window = int | tuple[int, int] | None


def given(masks: Masks) -> list[Tensor]:
    """The masks that are really there."""
    if masks is None:
        return []
    return [masks] if isinstance(masks, Tensor) else [mask for mask in masks if mask is not None]


def check_template(masks: list[Tensor], query: Tensor) -> None:
    """0.18 hands over one square template whatever the lengths are: above the diagonal is hidden. It only says 'causal'."""
    mask = masks[0]
    square = len(masks) == 1 and mask.dim() == 2 and mask.shape[0] == mask.shape[1]
    if not square or mask.is_floating_point() or mask.is_complex() or (mask.is_meta and not query.is_meta):
        shapes = [list(mask.shape) for mask in masks]
        raise wrong(
            "attn_mask",
            f"is {mask.dtype} of shape {', '.join(map(str, shapes))} on {mask.device}, expected one square template"
            " (bool or integers) that is 1 above its diagonal",
        )
    if torch.compiler.is_compiling() or not mask.is_cpu or mask.shape[0] < 2:
        return
    corner = [bool(value) for value in mask[:2, :2].reshape(-1).tolist()]
    if corner != [False, True, False, False] or not _is_causal_around(mask):
        raise wrong("attn_mask", "is not a causal template: expected 1 above the diagonal and 0 elsewhere")


def _is_causal_around(mask: Tensor) -> bool:
    """Whether a template's outermost rows and columns are causal. Every layer hands over the same: the last is remembered."""
    global _last
    # Tensors of inference mode have no version: nobody could see a change of theirs.
    version = 0 if mask.is_inference() else mask._version
    if _last is not None and _last[0]() is mask and _last[1] == version:
        return True
    hidden = mask != 0 if mask.dtype != torch.bool else mask
    top, right = hidden[0, 1:], hidden[:-1, -1]
    bottom, left = hidden[-1], hidden[:, 0]
    if not (bool(top.all()) and bool(right.all())) or bool(bottom.any()) or bool(left.any()):
        return False
    _last = ref(mask), version
    return True


def by_token(masks: list[Tensor], q_seq_len: Tensor, kv_seq_len: Tensor) -> Tensor:
    """One mask with a row for each token, of what 0.16 hands over: that, one for all sequences, or one for each.

    One mask for all may have as many rows as there are tokens: it is read so if it is square and wider than any sequence.
    """
    are_lengths("kv_seq_len", kv_seq_len, q_seq_len)
    if kv_seq_len.shape != q_seq_len.shape:
        text = f"has shape {list(kv_seq_len.shape)}, expected {list(q_seq_len.shape)} like q_seq_len"
        raise wrong("kv_seq_len", text)
    lengths: list[int] = q_seq_len.tolist()
    kv_lengths: list[int] = kv_seq_len.tolist()
    masks = [_plain(mask) for mask in masks]
    _check_alike("attn_mask", masks)
    tokens, columns = sum(lengths), max(kv_lengths, default=0)
    shared = len(lengths) > 1 and masks[0].shape[0] == masks[0].shape[1] > columns
    if len(masks) == 1 and masks[0].shape[0] == tokens and not shared:
        chosen = [masks[0]]
    elif len(masks) == 1:
        chosen = [masks[0][:length] for length in lengths]
    elif len(masks) == len(lengths):
        chosen = [mask[:length] for mask, length in zip(masks, lengths, strict=True)]
    else:
        raise wrong("attn_mask", f"has {len(masks)} masks, expected 1 or {len(lengths)} (sequences)")
    if sum(len(mask) for mask in chosen) != tokens:
        raise wrong("attn_mask", f"has {sum(len(mask) for mask in chosen)} rows for {tokens} query tokens")
    needed = [columns] if len(chosen) == 1 else kv_lengths
    for mask, length in zip(chosen, needed, strict=True):
        if mask.shape[1] < length:
            raise wrong("attn_mask", f"has {mask.shape[1]} columns for {length} keys (kv_seq_len)")
    if len(chosen) == 1:
        return chosen[0]
    return torch.cat([_padded(mask, columns) for mask in chosen])


def _plain(mask: Tensor, argument: str = "attn_mask") -> Tensor:
    """Two dimensions, bool or floating."""
    while mask.dim() > 2 and mask.shape[0] == 1:
        mask = mask.squeeze(0)
    if mask.dim() != 2:
        raise wrong(argument, f"has shape {list(mask.shape)}, expected [queries, keys]")
    return mask if mask.is_floating_point() or mask.dtype == torch.bool else mask != 0


def _check_alike(argument: str, masks: list[Tensor]) -> None:
    """True hides in some masks, numbers are added in others: one call has one kind, on one device."""
    for mask in masks[1:]:
        if mask.dtype != masks[0].dtype or mask.device != masks[0].device:
            kinds = ", ".join(f"{mask.dtype} on {mask.device}" for mask in masks)
            raise wrong(argument, f"has masks of {kinds}, expected one dtype and device")


def _padded(mask: Tensor, columns: int) -> Tensor:
    """As many columns; what is added is never looked at."""
    if mask.shape[1] >= columns:
        return mask[:, :columns]
    return torch.nn.functional.pad(mask, (0, columns - mask.shape[1]))


def for_batch(masks: list[Tensor], batch: int) -> Tensor | None:
    """[batch or 1, queries, keys] of one mask or of one for each element of the batch."""
    if not masks:
        return None
    if len(masks) == 1 and masks[0].dim() == 3:
        mask = masks[0]
        return mask if mask.is_floating_point() or mask.dtype == torch.bool else mask != 0
    if len(masks) not in (1, batch):
        raise wrong("mask", f"has {len(masks)} masks, expected 1 or {batch}")
    plain = [_plain(mask, "mask") for mask in masks]
    _check_alike("mask", plain)
    if any(mask.shape != plain[0].shape for mask in plain):
        shapes = ", ".join(str(list(mask.shape)) for mask in plain)
        raise wrong("mask", f"has shapes {shapes}, expected one shape for all")
    return torch.stack(plain)


# ---- what changes scores beside a mask ----


def mask_parameters(
    query: Tensor, scale: float | None, slopes: Slopes, window: Window, soft_cap: float | None
) -> tuple[float, Tensor | None, int, int, float]:
    """softmax_scale, alibi_slopes, window_left, window_right, soft_cap. A window of n keys counts the query's own."""
    if slopes is not None and not isinstance(slopes, Tensor):
        slopes = torch.tensor(list(slopes), dtype=torch.float32, device=query.device)
    if window is None:
        left, right = -1, -1
    elif isinstance(window, int):
        left = right = window - 1 if window > 0 else -1
    else:
        left, right = _sides(window)
    return (query.shape[-1] ** -0.5 if scale is None else scale), slopes, left, right, soft_cap or 0.0


def _sides(window: Sequence[int]) -> tuple[int, int]:
    pair = isinstance(window, (tuple, list)) and len(window) == 2
    if not pair or not (isinstance(window[0], int) and isinstance(window[1], int)):
        raise wrong(
            "window_size",
            f"is {window!r}, expected a whole number of keys, or (left, right) as positions on both sides",
        )
    return window[0], window[1]
