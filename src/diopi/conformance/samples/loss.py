"""Samples of losses and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from diopi.conformance.samples import Maker, Sample, SampleFunction, samples, table

NONE, MEAN, SUM = 0, 1, 2
_SHAPES = ((), (5,), (3, 7), (2, 3, 4, 5), (0, 3), (41, 123))


def _backward(function: str, forward: SampleFunction) -> None:
    """Registers the samples of a loss with what comes from behind: of the loss's shape."""

    @samples(function)
    def backward(make: Maker) -> Iterator[Sample]:
        for sample in forward(make):
            shape = list(sample["target"].shape) if sample["reduction"] == NONE else []
            if "label_smoothing" in sample and sample["target"].is_floating_point():
                del shape[1:2]  # probabilities of classes
            yield {**sample, "grad_output": make(*shape)}


@samples("diopiMSELoss")
def mse(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        reductions = (NONE, MEAN, SUM) if number in (2, 3) else ((MEAN, NONE, SUM)[number % 3],)
        for reduction in reductions:
            yield {"input": make(*shape), "target": make(*shape), "reduction": reduction}


@samples("diopiSmoothL1Loss")
def smooth_l1(make: Maker) -> Iterator[Sample]:
    for number, sample in enumerate(mse(make)):
        yield {**sample, "beta": (1.0, 0.5, 2.5, 1.0, 0.11, 0.0)[number % 6]}


_backward("diopiMSELossBackward", mse)
_backward("diopiSmoothL1LossBackward", smooth_l1)


# ---- binary cross entropy ----


def _labels(*shape: int) -> Callable[[Maker], torch.Tensor]:
    return lambda make: make.mask(*shape).to(make.dtype)


def _values(*numbers: float) -> Callable[[Maker], torch.Tensor]:
    return lambda make: make.laid_out(torch.tensor(numbers).to(make.dtype), written=True)


binary = table(
    "diopiBCELoss",
    "weight input target reduction",
    (None, (4, 5), (4, 5), NONE),
    (None, (4, 5), (4, 5), MEAN),
    (None, (4, 5), (4, 5), SUM),
    ((4, 5), (4, 5), (4, 5), MEAN),
    ((5,), (3, 4, 5), _labels(3, 4, 5), NONE),
    (None, _values(0, 0, 1, 1, 0.5), _values(0, 1, 0, 1, 1.0), NONE),
    (None, (), (), SUM),
    (None, (37, 135), (37, 135), MEAN),
    input=(0.02, 0.98),
    target=(0.02, 0.98),
    weight=(0.5, 2),
)
_backward("diopiBCELossBackward", binary)


@samples("diopiBCEWithLogits")
def logits(make: Maker) -> Iterator[Sample]:
    def given(*shape: int) -> Sample:
        return {"input": make(*shape), "target": make(*shape, low=0, high=1)}

    for reduction in (NONE, MEAN, SUM):
        yield {**given(4, 5), "reduction": reduction}
    positive = make(5, low=0.5, high=3)
    yield {**given(4, 5), "pos_weight": positive, "reduction": MEAN}
    weight = make(4, 1, low=0.5, high=2)
    yield {**given(4, 5), "weight": weight, "pos_weight": positive, "reduction": NONE}
    yield {**given(2, 3, 4), "weight": make(4, low=0, high=2), "reduction": SUM}
    far = make(3, 9, low=-90, high=90)
    yield {"input": far, "target": make.mask(3, 9).to(make.dtype), "reduction": NONE}
    yield {**given(), "reduction": MEAN}
    yield {**given(37, 135), "reduction": MEAN}


_backward("diopiBCEWithLogitsBackward", logits)

focal = table(
    "diopiSigmoidFocalLoss",
    "inputs targets alpha gamma reduction",
    ((4, 7), _labels(4, 7), 0.25, 2.0, NONE),
    ((4, 7), _labels(4, 7), 0.25, 2.0, MEAN),
    ((4, 7), _labels(4, 7), 0.25, 2.0, SUM),
    ((4, 7), _labels(4, 7), -1.0, 1.5, NONE),
    ((2, 3, 5), _labels(2, 3, 5), 0.6, 0.0, SUM),
    ((9,), lambda make: make(9, low=0, high=1), 0.3, 3.0, NONE),
    ((29, 171), _labels(29, 171), 0.25, 2.0, MEAN),
)


def _renamed(make: Maker) -> Iterator[Sample]:
    """As the backward function calls its arguments."""
    for sample in focal(make):
        yield {"input": sample.pop("inputs"), "target": sample.pop("targets"), **sample}


_backward("diopiSigmoidFocalLossBackward", _renamed)


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


@samples("diopiNLLLoss")
def nll(make: Maker) -> Iterator[Sample]:
    def given(
        target: torch.Tensor,
        shape: tuple[int, ...],
        reduction: int,
        ignored: int = -100,
        weight: torch.Tensor | None = None,
    ) -> Sample:
        sample = {"input": make(*shape), "target": target, "weight": weight}
        return {**sample, "reduction": reduction, "ignore_index": ignored}

    for reduction in (NONE, MEAN, SUM):
        yield given(_classes(make, 6, classes=5, ignored=-100), (6, 5), reduction)
        weight = make(5, low=0.2, high=2)
        yield given(_classes(make, 7, classes=5, ignored=2), (7, 5), reduction, 2, weight)
    yield given(_classes(make, classes=5), (5,), SUM)
    yield given(_classes(make, 61, classes=83), (61, 83), MEAN)
    weight = make(3, low=0.2, high=2)
    yield given(_classes(make, 2, 4, 5, classes=3, ignored=-1), (2, 3, 4, 5), MEAN, -1, weight)
    yield given(_classes(make, 2, 4, 5, classes=3), (2, 3, 4, 5), NONE, 1)
    yield given(_classes(make, 2, 6, classes=3), (2, 3, 6), SUM, weight=weight)


_backward("diopiNLLLossBackward", nll)


@samples("diopiNLLLossV2")
def nll_with_weight(make: Maker) -> Iterator[Sample]:
    """With the total weight, which the reference leaves open where nothing is reduced."""
    for sample in nll(make):
        if sample["input"].dim() not in _WITH_WEIGHT:
            continue
        yield {**sample, "totalWeight": make.out()} if sample["reduction"] == NONE else sample


def _nll_saved(make: Maker) -> Iterator[Sample]:
    """With the total weight that the forward function gave."""
    for sample in nll(make):
        if sample["input"].dim() not in _WITH_WEIGHT:
            continue
        counted = sample["target"][sample["target"] != sample["ignore_index"]]
        weight = sample["weight"]
        total = torch.tensor(float(counted.numel())) if weight is None else weight[counted].sum()
        yield {**sample, "totalWeight": make.laid_out(total.to(make.dtype))}


_backward("diopiNLLLossV2Backward", _nll_saved)


@samples("diopiCrossEntropyLoss")
def cross_entropy(make: Maker) -> Iterator[Sample]:
    for number, sample in enumerate(nll(make)):
        yield {**sample, "label_smoothing": (0.0, 0.1, 0.0, 0.3)[number % 4]}
    for reduction, smoothing in ((NONE, 0.0), (MEAN, 0.2), (SUM, 0.0)):
        shape = (4, 5) if reduction != SUM else (2, 3, 7)
        sample = {"target": make(*shape, low=0, high=1), "input": make(*shape)}
        sample["weight"] = make(shape[1], low=0.2, high=2) if reduction != NONE else None
        yield {**sample, "reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}


_backward("diopiCrossEntropyLossBackward", cross_entropy)


# ---- connectionist temporal classification ----


def _sequences(make: Maker) -> Iterator[Sample]:
    def log_probs(*shape: int) -> torch.Tensor:
        drawn = make(*shape, low=-2, high=2).float().log_softmax(-1)
        return make.laid_out(drawn.to(make.dtype), written=True)

    def lengths(*values: int) -> torch.Tensor:
        return make.laid_out(torch.tensor(values), written=True)

    full = {"input_lengths": lengths(9, 9), "target_lengths": lengths(3, 3)}
    for reduction in (NONE, MEAN, SUM):
        given = {"targets": make.index(2, 3, low=1, high=5), "log_probs": log_probs(9, 2, 5), **full}
        yield {**given, "blank": 0, "reduction": reduction, "zero_infinity": False}
    ragged = {"input_lengths": lengths(12, 7, 10), "target_lengths": lengths(2, 4, 0)}
    given = {"targets": make.index(3, 5, high=6), "log_probs": log_probs(12, 3, 7), **ragged}
    yield {**given, "blank": 6, "reduction": MEAN, "zero_infinity": False}
    given = {"targets": make.index(6, low=1, high=7), "log_probs": log_probs(12, 3, 7), **ragged}
    yield {**given, "blank": 0, "reduction": NONE, "zero_infinity": True}
    short = {"input_lengths": lengths(2, 8), "target_lengths": lengths(4, 4)}
    given = {"targets": make.index(2, 4, low=1, high=4), "log_probs": log_probs(8, 2, 4), **short}
    yield {**given, "blank": 0, "reduction": SUM, "zero_infinity": True}


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
