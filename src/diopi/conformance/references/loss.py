"""What the losses of the interface mean, where an expression does not say it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diopi.conformance.references.gradients import as_float, input_gradient

_WORDS = ("none", "mean", "sum")


def reduction_word(reduction: int) -> str:
    """`diopiReduction_t` as PyTorch names it."""
    return _WORDS[reduction]


def nll_loss_and_weight(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """The loss, and the sum of the weights of the targets that count."""
    loss = F.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction_word(reduction))
    if reduction_word(reduction) == "none":
        return loss, None
    counted = target[target != ignore_index].long()
    total = input.new_tensor(counted.numel()) if weight is None else weight[counted].sum()
    return loss, total


def nll_gradient(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    total: Tensor,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """Minus the weight of each target at its position, times what comes from behind; the mean divides by the total weight."""
    function = torch.ops.aten.nll_loss2d_backward if input.dim() == 4 else torch.ops.aten.nll_loss_backward
    tensors = (tensor.contiguous() for tensor in (grad_output, input, target))
    return function(*tensors, weight, reduction, ignore_index, total)


def focal_loss(inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: int) -> Tensor:
    """Cross entropy of each logit, less the surer it is right; alpha balances the two classes."""
    alpha, gamma = as_float(alpha), as_float(gamma)
    targets = targets.to(inputs.dtype)
    probability = torch.sigmoid(inputs)
    missed = probability * (1 - targets) + (1 - probability) * targets
    loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none") * missed**gamma
    if alpha >= 0:
        loss = loss * (alpha * targets + (1 - alpha) * (1 - targets))
    match reduction_word(reduction):
        case "mean":
            return loss.mean()
        case "sum":
            return loss.sum()
    return loss


def focal_gradient(
    grad_output: Tensor, input: Tensor, target: Tensor, alpha: float, gamma: float, reduction: int
) -> Tensor:
    """The slope of each logit's loss, times what comes from behind."""
    one, total = torch.ones((), dtype=input.dtype), _WORDS.index("sum")
    slope = input_gradient(focal_loss, one, input, target, alpha, gamma, total)
    return grad_output * (slope / input.numel() if reduction_word(reduction) == "mean" else slope)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss, that of each sequence, and the forward variables; the latter only where every sequence fills them."""
    targets = targets.contiguous()  # torch misreads labels in one row that have gaps
    lengths = [int(n) for n in input_lengths], [int(n) for n in target_lengths]
    given = (log_probs, targets, input_lengths, target_lengths, blank)
    loss = F.ctc_loss(*given, reduction_word(reduction), zero_infinity)
    each, forward = torch.ops.aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    filled = min(lengths[0]) == log_probs.shape[0] and min(lengths[1]) == max(lengths[1])
    return loss, each, forward if filled else None


def ctc_gradient(
    grad_output: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of the log-probabilities, from the forward variables that are given."""
    grad = grad_output.expand(target_lengths.shape)
    if reduction_word(reduction) == "mean":
        grad = grad / target_lengths.clamp(min=1).to(grad.dtype) / target_lengths.numel()
    lengths = [int(n) for n in input_lengths], [int(n) for n in target_lengths]
    given = (grad.contiguous(), log_probs, targets.contiguous(), *lengths, neg_log_likelihood, log_alpha)
    return torch.ops.aten._ctc_loss_backward(*given, blank, zero_infinity)
