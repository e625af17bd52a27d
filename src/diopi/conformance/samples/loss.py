"""Samples of losses and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples

NONE, MEAN, SUM = 0, 1, 2
_SHAPES = ((), (5,), (3, 7), (2, 3, 4, 5), (0, 3), (41, 123))


def _grad_of(make: Maker, reduction: int, *shape: int) -> torch.Tensor:
    """What comes from behind: of the loss's shape."""
    return make(*shape) if reduction == NONE else make()


@samples("diopiMSELoss")
def mse(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        reductions = (NONE, MEAN, SUM) if number in (2, 3) else ((MEAN, NONE, SUM)[number % 3],)
        for reduction in reductions:
            yield {"input": make(*shape), "target": make(*shape), "reduction": reduction}


@samples("diopiMSELossBackward")
def mse_backward(make: Maker) -> Iterator[Sample]:
    for sample in mse(make):
        yield {**sample, "grad_output": _grad_of(make, sample["reduction"], *sample["input"].shape)}


@samples("diopiSmoothL1Loss")
def smooth_l1(make: Maker) -> Iterator[Sample]:
    for number, sample in enumerate(mse(make)):
        yield {**sample, "beta": (1.0, 0.5, 2.5, 1.0, 0.11, 0.0)[number % 6]}


@samples("diopiSmoothL1LossBackward")
def smooth_l1_backward(make: Maker) -> Iterator[Sample]:
    for sample in smooth_l1(make):
        yield {**sample, "grad_output": _grad_of(make, sample["reduction"], *sample["input"].shape)}


# ---- binary cross entropy ----


@samples("diopiBCELoss")
def binary(make: Maker) -> Iterator[Sample]:
    def probability(*shape: int) -> torch.Tensor:
        return make(*shape, low=0.02, high=0.98)

    for reduction in (NONE, MEAN, SUM):
        yield {"input": probability(4, 5), "target": probability(4, 5), "reduction": reduction}
    weight = make(4, 5, low=0.5, high=2)
    yield {"input": probability(4, 5), "target": probability(4, 5), "weight": weight, "reduction": MEAN}
    weight = make(5, low=0.5, high=2)
    yield {
        "input": probability(3, 4, 5),
        "target": make.mask(3, 4, 5).to(make.dtype),
        "weight": weight,
        "reduction": NONE,
    }
    sure = make.laid_out(torch.tensor([0, 0, 1, 1, 0.5]).to(make.dtype), written=True)
    right = make.laid_out(torch.tensor([0, 1, 0, 1, 1.0]).to(make.dtype), written=True)
    yield {"input": sure, "target": right, "reduction": NONE}
    yield {"input": probability(), "target": probability(), "reduction": SUM}
    yield {"input": probability(37, 135), "target": probability(37, 135), "reduction": MEAN}


@samples("diopiBCELossBackward")
def binary_backward(make: Maker) -> Iterator[Sample]:
    for sample in binary(make):
        yield {**sample, "grad_output": _grad_of(make, sample["reduction"], *sample["input"].shape)}


@samples("diopiBCEWithLogits")
def logits(make: Maker) -> Iterator[Sample]:
    def target(*shape: int) -> torch.Tensor:
        return make(*shape, low=0, high=1)

    for reduction in (NONE, MEAN, SUM):
        yield {"input": make(4, 5), "target": target(4, 5), "reduction": reduction}
    positive = make(5, low=0.5, high=3)
    yield {"input": make(4, 5), "target": target(4, 5), "pos_weight": positive, "reduction": MEAN}
    weight = make(4, 1, low=0.5, high=2)
    yield {
        "input": make(4, 5),
        "target": target(4, 5),
        "weight": weight,
        "pos_weight": positive,
        "reduction": NONE,
    }
    yield {
        "input": make(2, 3, 4),
        "target": target(2, 3, 4),
        "weight": make(4, low=0, high=2),
        "reduction": SUM,
    }
    far = make(3, 9, low=-90, high=90)
    yield {"input": far, "target": make.mask(3, 9).to(make.dtype), "reduction": NONE}
    yield {"input": make(), "target": target(), "reduction": MEAN}
    yield {"input": make(37, 135), "target": target(37, 135), "reduction": MEAN}


@samples("diopiBCEWithLogitsBackward")
def logits_backward(make: Maker) -> Iterator[Sample]:
    for sample in logits(make):
        yield {**sample, "grad_output": _grad_of(make, sample["reduction"], *sample["input"].shape)}


@samples("diopiSigmoidFocalLoss")
def focal(make: Maker) -> Iterator[Sample]:
    def target(*shape: int) -> torch.Tensor:
        return make.mask(*shape).to(make.dtype)

    for reduction in (NONE, MEAN, SUM):
        yield {
            "inputs": make(4, 7),
            "targets": target(4, 7),
            "alpha": 0.25,
            "gamma": 2.0,
            "reduction": reduction,
        }
    yield {"inputs": make(4, 7), "targets": target(4, 7), "alpha": -1.0, "gamma": 1.5, "reduction": NONE}
    yield {"inputs": make(2, 3, 5), "targets": target(2, 3, 5), "alpha": 0.6, "gamma": 0.0, "reduction": SUM}
    soft = make(9, low=0, high=1)
    yield {"inputs": make(9), "targets": soft, "alpha": 0.3, "gamma": 3.0, "reduction": NONE}
    yield {
        "inputs": make(29, 171),
        "targets": target(29, 171),
        "alpha": 0.25,
        "gamma": 2.0,
        "reduction": MEAN,
    }


@samples("diopiSigmoidFocalLossBackward")
def focal_backward(make: Maker) -> Iterator[Sample]:
    for sample in focal(make):
        inputs, targets = sample.pop("inputs"), sample.pop("targets")
        grad = _grad_of(make, sample["reduction"], *inputs.shape)
        yield {**sample, "input": inputs, "target": targets, "grad_output": grad}


# ---- classes ----

_WITH_WEIGHT = (1, 2, 4)  # dimensions of inputs for which the total weight is asked


def _classes(make: Maker, *shape: int, classes: int, ignored: int | None = None) -> torch.Tensor:
    """Targets; about every fourth is `ignored`, the first never."""
    drawn = make.index(*shape, high=classes)
    if ignored is None:
        return drawn
    where = make.mask(*shape, rate=0.25).clone(memory_format=torch.contiguous_format)
    where.view(-1)[:1] = False
    return make.laid_out(torch.where(where, ignored, drawn))


def _nll(make: Maker) -> Iterator[Sample]:
    for reduction in (NONE, MEAN, SUM):
        target = _classes(make, 6, classes=5, ignored=-100)
        yield {"input": make(6, 5), "target": target, "reduction": reduction, "ignore_index": -100}
        weight = make(5, low=0.2, high=2)
        target = _classes(make, 7, classes=5, ignored=2)
        yield {
            "input": make(7, 5),
            "target": target,
            "weight": weight,
            "reduction": reduction,
            "ignore_index": 2,
        }
    yield {"input": make(5), "target": _classes(make, classes=5), "reduction": SUM, "ignore_index": -100}
    yield {
        "input": make(61, 83),
        "target": _classes(make, 61, classes=83),
        "reduction": MEAN,
        "ignore_index": -100,
    }
    weight = make(3, low=0.2, high=2)
    target = _classes(make, 2, 4, 5, classes=3, ignored=-1)
    yield {
        "input": make(2, 3, 4, 5),
        "target": target,
        "weight": weight,
        "reduction": MEAN,
        "ignore_index": -1,
    }
    target = _classes(make, 2, 4, 5, classes=3)
    yield {"input": make(2, 3, 4, 5), "target": target, "reduction": NONE, "ignore_index": 1}
    target = _classes(make, 2, 6, classes=3)
    yield {"input": make(2, 3, 6), "target": target, "weight": weight, "reduction": SUM, "ignore_index": -100}


def _class_grad(make: Maker, sample: Sample) -> Sample:
    shape = [] if sample["reduction"] else sample["target"].shape
    return {**sample, "grad_output": make(*shape)}


@samples("diopiNLLLoss")
def nll(make: Maker) -> Iterator[Sample]:
    yield from _nll(make)


@samples("diopiNLLLossBackward")
def nll_backward(make: Maker) -> Iterator[Sample]:
    for sample in _nll(make):
        yield _class_grad(make, sample)


@samples("diopiNLLLossV2")
def nll_with_weight(make: Maker) -> Iterator[Sample]:
    """With the total weight, which the reference leaves open where nothing is reduced."""
    for sample in _nll(make):
        if sample["input"].dim() not in _WITH_WEIGHT:
            continue
        yield {**sample, "totalWeight": make.out()} if sample["reduction"] == NONE else sample


@samples("diopiNLLLossV2Backward")
def nll_with_weight_backward(make: Maker) -> Iterator[Sample]:
    for sample in _nll(make):
        if sample["input"].dim() not in _WITH_WEIGHT:
            continue
        counted = sample["target"][sample["target"] != sample["ignore_index"]]
        weight = sample.get("weight")
        total = torch.tensor(float(counted.numel())) if weight is None else weight[counted].sum()
        yield {**_class_grad(make, sample), "totalWeight": make.laid_out(total.to(make.dtype))}


@samples("diopiCrossEntropyLoss")
def cross_entropy(make: Maker) -> Iterator[Sample]:
    for number, sample in enumerate(_nll(make)):
        yield {**sample, "label_smoothing": (0.0, 0.1, 0.0, 0.3)[number % 4]}
    for reduction, smoothing in ((NONE, 0.0), (MEAN, 0.2), (SUM, 0.0)):
        shape = (4, 5) if reduction != SUM else (2, 3, 7)
        probabilities = make(*shape, low=0, high=1)
        yield {
            "input": make(*shape),
            "target": probabilities,
            "weight": make(shape[1], low=0.2, high=2) if reduction != NONE else None,
            "reduction": reduction,
            "ignore_index": -100,
            "label_smoothing": smoothing,
        }


@samples("diopiCrossEntropyLossBackward")
def cross_entropy_backward(make: Maker) -> Iterator[Sample]:
    for sample in cross_entropy(make):
        shape = sample["target"].shape
        if sample["target"].is_floating_point():
            shape = torch.Size((shape[0], *shape[2:]))
        yield {**sample, "grad_output": make(*([] if sample["reduction"] else shape))}


# ---- connectionist temporal classification ----


def _sequences(make: Maker) -> Iterator[Sample]:
    def log_probs(*shape: int) -> torch.Tensor:
        drawn = make(*shape, low=-2, high=2).float().log_softmax(-1)
        return make.laid_out(drawn.to(make.dtype), written=True)

    def lengths(*values: int) -> torch.Tensor:
        return make.laid_out(torch.tensor(values), written=True)

    full = {"input_lengths": lengths(9, 9), "target_lengths": lengths(3, 3), "blank": 0}
    for reduction in (NONE, MEAN, SUM):
        target = make.index(2, 3, low=1, high=5)
        yield {
            "log_probs": log_probs(9, 2, 5),
            "targets": target,
            **full,
            "reduction": reduction,
            "zero_infinity": False,
        }
    ragged = {"input_lengths": lengths(12, 7, 10), "target_lengths": lengths(2, 4, 0)}
    target = make.index(3, 5, high=6)
    yield {
        "log_probs": log_probs(12, 3, 7),
        "targets": target,
        **ragged,
        "blank": 6,
        "reduction": MEAN,
        "zero_infinity": False,
    }
    target = make.index(6, low=1, high=7)
    yield {
        "log_probs": log_probs(12, 3, 7),
        "targets": target,
        **ragged,
        "blank": 0,
        "reduction": NONE,
        "zero_infinity": True,
    }
    short = {
        "input_lengths": lengths(2, 8),
        "target_lengths": lengths(4, 4),
        "blank": 0,
        "zero_infinity": True,
    }
    target = make.index(2, 4, low=1, high=4)
    yield {"log_probs": log_probs(8, 2, 4), "targets": target, **short, "reduction": SUM}


@samples("diopiCTCLoss")
def ctc(make: Maker) -> Iterator[Sample]:
    """Where lengths differ the reference leaves the forward variables open, so the sample says how many there are."""
    for sample in _sequences(make):
        steps, count, _ = sample["log_probs"].shape
        yield {**sample, "log_alpha": make.out(count, steps, 2 * int(sample["target_lengths"].max()) + 1)}


@samples("diopiCTCLossBackward")
def ctc_backward(make: Maker) -> Iterator[Sample]:
    for sample in _sequences(make):
        upcast = sample["log_probs"].float() if make.dtype.itemsize < 4 else sample["log_probs"]
        lengths = sample["input_lengths"].tolist(), sample["target_lengths"].tolist()
        each, forward = torch.ops.aten._ctc_loss(
            upcast, sample["targets"].contiguous(), *lengths, sample["blank"], sample["zero_infinity"]
        )
        for index, (steps, labels) in enumerate(zip(*lengths, strict=True)):
            forward[index, steps:] = 0  # never written by the forward function, never read by this one
            forward[index, :, 2 * labels + 1 :] = 0
        yield {
            **sample,
            "grad_output": make(*([] if sample["reduction"] else each.shape), low=-1, high=2),
            "neg_log_likelihood": make.laid_out(each.to(make.dtype), written=True),
            "log_alpha": make.laid_out(forward.to(make.dtype), written=True),
        }
