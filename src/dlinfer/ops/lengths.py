"""Lengths as the call forms give them: whether they agree, and cumulative as the interface takes them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from dlinfer.errors import wrong
from dlinfer.interface.checks import INTEGERS


def is_tensor(argument: str, value: Tensor | None) -> None:
    """What cannot be left out."""
    if not isinstance(value, Tensor):
        raise wrong(argument, f"is a {type(value).__name__}, expected a tensor")


def are_lengths(argument: str, value: Tensor | None, beside: Tensor) -> None:
    """Whole numbers, which exist if those `beside` them do."""
    is_tensor(argument, value)
    assert value is not None
    if value.dtype not in INTEGERS:
        raise wrong(argument, f"dtype is {value.dtype}, expected int32 or int64")
    if value.is_meta and not beside.is_meta:
        raise wrong(argument, f"is on meta, expected {beside.device} or cpu")


def cumulative(lengths: Tensor) -> Tensor:
    """Cumulative lengths with the 0 of the first sequence in front. What is no vector is left for the operator to refuse."""
    return pad(lengths, (1, 0)) if lengths.dim() == 1 else lengths


def cumulative_beside(ends: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Cumulative lengths, from 0: of where sequences end, or of their lengths; the two must agree where looking is cheap."""
    if ends is None:
        is_tensor("q_seqlens", lengths)
        return cumulative(lengths.cumsum(0))  # type: ignore[union-attr]
    if lengths is not None:
        are_lengths("q_seqlens", lengths, ends)
        if lengths.dim() != 1:
            raise wrong("q_seqlens", f"has shape {list(lengths.shape)}, expected [sequences]")
    if torch.compiler.is_compiling() or not (_readable(ends) and _readable(lengths)):
        return cumulative(ends)
    given, found = lengths.tolist(), ends.tolist()  # type: ignore[union-attr]
    # Some callers give cumulative lengths for both.
    if given not in (found, [end - start for start, end in zip([0, *found], found, strict=False)]):
        raise wrong(
            "q_seqlens", f"is {given}, which disagrees with actual_seq_lengths_cpu {found} (cumulative)"
        )
    return cumulative(ends)


def _readable(lengths: Tensor | None) -> bool:
    """Whether values can be read without waiting; those of a subclass (fake tensors) perhaps not at all."""
    return type(lengths) is Tensor and lengths.is_cpu and lengths.dim() == 1


def cumulative_of(starts: Tensor, lengths: Tensor) -> Tensor:
    """Cumulative lengths, from 0, of where sequences start ([sequences], or one more for the end) and how long they are."""
    is_tensor("q_start_loc", starts)
    are_lengths("q_seq_len", lengths, starts)
    are_lengths("q_start_loc", starts, lengths)
    if starts.dim() != 1 or lengths.dim() != 1 or starts.shape[0] - lengths.shape[0] not in (0, 1):
        raise wrong(
            "q_start_loc",
            f"has shape {list(starts.shape)}, expected [{lengths.numel()}] or [{lengths.numel() + 1}] for q_seq_len",
        )
    batch = lengths.shape[0]
    if starts.shape[0] == batch and starts.device != lengths.device:
        raise wrong("q_start_loc", f"is on {starts.device}, expected {lengths.device} like q_seq_len")
    ends = starts[1:] if starts.shape[0] > batch else starts + lengths
    if starts.is_cpu and lengths.is_cpu and not torch.compiler.is_compiling():
        total = 0
        for index, (start, end, length) in enumerate(
            zip(starts.tolist(), ends.tolist(), lengths.tolist(), strict=False)
        ):
            if start != total or end - start != length:
                raise wrong(
                    "q_seq_len",
                    f"element {index} is {length}, but q_start_loc has it from {start} to {end} (expected from {total})",
                )
            total = end
    return starts if starts.shape[0] > batch else cumulative(ends)


def check_cumulative(cumulative: Tensor, lengths: Tensor) -> None:
    """Cumulative lengths that are given beside lengths must agree with them."""
    are_lengths("cu_seq_lens_kv", cumulative, lengths)
    if cumulative.dim() != 1 or lengths.dim() != 1 or cumulative.shape[0] != lengths.shape[0] + 1:
        raise wrong(
            "cu_seq_lens_kv",
            f"has shape {list(cumulative.shape)}, expected one element more than kv_seq_len {list(lengths.shape)}",
        )
    on_cpu = cumulative.is_cpu and lengths.is_cpu
    if on_cpu and not torch.compiler.is_compiling() and cumulative.diff().tolist() != lengths.tolist():
        raise wrong(
            "cu_seq_lens_kv", f"is {cumulative.tolist()}, which disagrees with kv_seq_len {lengths.tolist()}"
        )


def check_even(lengths: Tensor, tokens: int, block_table: Tensor) -> None:
    """Every sequence has the same number of new tokens, read either way."""
    are_lengths("q_seq_len", lengths, block_table)
    batch = len(block_table) if block_table.dim() else 0
    if lengths.dim() != 1 or lengths.shape[0] != batch:
        raise wrong("q_seq_len", f"has shape {list(lengths.shape)}, expected [{batch}] (rows of block_table)")
    if not lengths.is_cpu or not batch or torch.compiler.is_compiling():
        return
    found = lengths.tolist()
    new = tokens // batch
    if found.count(new) != batch and found != list(range(new, tokens + 1, new or 1)):
        raise wrong(
            "q_seq_len", f"is {found}, expected {new} for each of {batch} sequences ({tokens} query tokens)"
        )
