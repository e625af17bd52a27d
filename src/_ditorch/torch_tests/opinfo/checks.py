"""What is asked of an operator. Each function asks it of one sample and raises where device and CPU differ."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from _ditorch.torch_tests.opinfo.compare import Mismatch, ResultComparison
from _ditorch.torch_tests.opinfo.inputs import SEED, Transfer, random_like
from _ditorch.torch_tests.opinfo.judge import Arguments, DeviceError, PairJudge, call, parts_of
from _ditorch.torch_tests.opinfo.pairs import ALL_DTYPES, name_of
from _ditorch.torch_tests.outcomes import OpInfoCheck, PairOutcome
from dicore.workers import one_line

__all__ = ["judged"]

# The answer when no output depends on an input that wants a gradient.
_NOT_DIFFERENTIABLE: tuple[list[Any], list[Any]] = ([], [])
# The other forms of out= are tried on so many samples of a pair; the plain form on all.
_SAMPLES_OF_OTHER_OUTS = 3
_SAMPLES_OF_A_DTYPE = 4


def judged(judge: PairJudge) -> PairOutcome:
    """Run the judge's pair."""
    check = judge.pair.check
    if check is OpInfoCheck.DTYPES:
        return judge.run(_dtypes, iter(_candidates(judge)))
    if check is OpInfoCheck.ERRORS:
        return judge.run(_errors, judge.error_inputs())
    assert judge.dtype is not None
    return judge.run(_QUESTIONS[check], judge.sample_inputs(judge.dtype, _wants_grad(judge)))


def _wants_grad(judge: PairJudge) -> bool:
    if judge.pair.check is OpInfoCheck.NONCONTIGUOUS:
        return judge.op.supports_autograd and judge.dtype in judge.op.supported_backward_dtypes("cpu")
    return judge.pair.check is OpInfoCheck.GRADIENT


def _forward(judge: PairJudge, sample: Any) -> None:
    judge.compare_call(judge.op.op, parts_of(sample))


# in place


def _inplace(judge: PairJudge, sample: Any) -> None:
    if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        judge.formless += 1
        return
    # A copy: several samples of an operator may share their first argument.
    arguments = Transfer("cpu")(parts_of(sample))
    judge.compare_run(lambda given: _in_place(judge, given), arguments, "in place")


def _in_place(judge: PairJudge, arguments: Arguments) -> Any:
    """The result, what the first argument holds afterwards, and whether they are one tensor."""
    result = call(judge.op.inplace_variant, arguments)
    return result if isinstance(result, Exception) else (result, arguments[0], result is arguments[0])


# out=


def _out(judge: PairJudge, sample: Any) -> None:
    arguments = parts_of(sample)
    if "out" in arguments[2]:
        judge.compare_call(judge.op.op, arguments, "out=")
        return
    result = call(judge.op.op, Transfer("cpu")(arguments))
    outs = tree_leaves(result)
    if isinstance(result, Exception) or not all(_can_be_out(out) for out in outs):
        judge.formless += 1
        return
    for name, blank in _outs(outs, judge.samples <= _SAMPLES_OF_OTHER_OUTS):
        kwargs = {key: value for key, value in arguments[2].items() if key not in ("device", "dtype")}
        kwargs["out"] = blank[0] if isinstance(result, torch.Tensor) else tuple(blank)
        given = (*Transfer("cpu")(arguments)[:2], kwargs)
        judge.compare_run(lambda moved: _write(judge, moved), given, name)


def _can_be_out(out: Any) -> bool:
    return isinstance(out, torch.Tensor) and out.layout == torch.strided


def _outs(results: list[torch.Tensor], all_forms: bool) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Places to write to: like the result; and, rarer, with gaps, empty, and of a dtype that cannot hold it."""
    yield "out=", [torch.empty_strided(o.size(), o.stride(), dtype=o.dtype) for o in results]
    if not all_forms:
        return
    yield "out= with gaps", [torch.zeros((*o.shape, 2), dtype=o.dtype)[..., 1] for o in results]
    yield "out= of size 0", [torch.empty(0, dtype=o.dtype) for o in results]
    if any(o.is_floating_point() or o.is_complex() for o in results):
        yield "out= of integers", [torch.zeros(o.size(), dtype=torch.int64) for o in results]


def _write(judge: PairJudge, arguments: Arguments) -> Any:
    """The addresses afterwards, whether they were returned, and whether each kept its memory; or the exception."""
    outs = tree_leaves(arguments[2]["out"])
    addresses = [out.data_ptr() if out.numel() else 0 for out in outs]
    result = call(judge.op.op, arguments)
    if isinstance(result, Exception):
        return result
    returned = all(got is out for got, out in zip(tree_leaves(result), outs, strict=False))
    kept = [not address or out.data_ptr() == address for out, address in zip(outs, addresses, strict=True)]
    return [outs, returned, kept]


# gradients


def _gradient(judge: PairJudge, sample: Any) -> None:
    arguments, finish = parts_of(sample), sample.output_process_fn_grad
    sides = Transfer("cpu")(arguments), judge.moved(arguments, Transfer(judge.options.device))

    def backward(given: Any) -> Any:
        return _backward(judge, given, finish)

    cpu, drawn = judge.seeded(lambda: backward(sides[0]))
    device, _ = judge.seeded(lambda: judge.waited(backward, sides[1]))
    if judge.both_raised(cpu, device) or cpu is device is _NOT_DIFFERENTIABLE:
        return
    comparison = ResultComparison(judge.device_type, judge.tolerance, values=not drawn)
    for part, name in ((0, "output"), (1, "gradient")):

        def one_part(given: Any, part: int = part) -> Any:
            found = backward(given)
            return found if isinstance(found, Exception) else found[part]

        judge.compare(comparison, cpu[part], device[part], name, one_part, arguments)


def _backward(judge: PairJudge, arguments: Arguments, finish: Callable[[Any], Any]) -> Any:
    """Outputs and gradients, or the exception."""
    try:
        result = finish(judge.op.op(arguments[0], *arguments[1], **arguments[2]))
        outputs, inputs = _wanting_grad(result), _wanting_grad(arguments)
        if not outputs or not inputs:
            return _NOT_DIFFERENTIABLE
        weights = [random_like(output, SEED + index, judge.dtype) for index, output in enumerate(outputs)]
        gradients = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    except Exception as error:
        return error
    return [output.detach() for output in outputs], list(gradients)


def _wanting_grad(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


# memory layouts


def _noncontiguous(judge: PairJudge, sample: Any) -> None:
    """The same numbers in tensors with gaps: result, and gradient where there is one."""
    if any(
        isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided
        for leaf in tree_leaves(parts_of(sample))
    ):
        judge.formless += 1  # gaps are a matter of strided tensors
        return
    loose = sample.noncontiguous()
    plain = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, parts_of(loose))
    judge.compare_call(judge.op.op, Transfer("cpu")(plain))
    if _wants_grad(judge):
        _gradient(judge, loose)


# inputs that must be refused


def _errors(judge: PairJudge, due: Any) -> None:
    arguments = parts_of(due.sample_input)
    moved = judge.moved(arguments, Transfer(judge.options.device))
    cpu = call(judge.op.op, arguments)
    device = judge.waited(lambda given: call(judge.op.op, given), moved)
    judge.compared += 1
    # Not isinstance: NotImplementedError is a RuntimeError too, and says something else.
    if judge.both_raised(cpu, device) and type(device) not in (type(cpu), due.error_type):
        raise Mismatch(f"refused with {one_line(device)} instead of {one_line(cpu)}")


# Does the device take exactly the dtypes it should? Held to the CPU, it must refuse a sample where the CPU refuses it and take it
# where the CPU does. Held to what the database declares for another device type, a dtype counts as taken when every sample
# of it runs, forward and, for an operator with a gradient, backward.


def _candidates(judge: PairJudge) -> list[torch.dtype]:
    """All dtypes that the device has, whether the operator declares them or not."""
    declared = judge.op.supported_dtypes("cpu") | judge.op.supported_dtypes(judge.options.dtypes_of)
    found = [*ALL_DTYPES, *sorted(declared - set(ALL_DTYPES), key=str)]
    return [dtype for dtype in found if judge.options.has_dtype(name_of(dtype))]


def _dtypes(judge: PairJudge, dtype: torch.dtype) -> None:
    """One dtype, forward and backward."""
    differentiable = judge.op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for backward in (False, True) if differentiable else (False,):
        try:
            samples = list(itertools.islice(judge.sample_inputs(dtype, backward), _SAMPLES_OF_A_DTYPE))
        except Exception:  # the database cannot even make a sample of this dtype
            judge.compared += 1
            continue
        what = f"{name_of(dtype)} {'backward' if backward else 'forward'}"
        run = functools.partial(_differentiated, judge) if backward else functools.partial(call, judge.op.op)
        if judge.options.dtypes_of == "cpu":
            _like_the_cpu(judge, run, samples, what)
        else:
            _as_declared(judge, run, samples, what, dtype, backward)


def _like_the_cpu(judge: PairJudge, run: Callable[[Any], Any], samples: list[Any], what: str) -> None:
    for index, sample in enumerate(samples):
        moved = judge.moved(parts_of(sample), Transfer(judge.options.device))
        cpu, device = run(parts_of(sample)), judge.waited(run, moved)
        judge.compared += 1
        judge.both_raised(cpu, device, f"{what}, sample {index}: ")


def _as_declared(
    judge: PairJudge,
    run: Callable[[Any], Any],
    samples: list[Any],
    what: str,
    dtype: torch.dtype,
    backward: bool,
) -> None:
    held_to = judge.options.dtypes_of
    declared = judge.op.supported_backward_dtypes(held_to) if backward else judge.op.supported_dtypes(held_to)
    refusals = []
    for sample in samples:
        moved = judge.moved(parts_of(sample), Transfer(judge.options.device))
        refusals.append(judge.waited(run, moved))
        judge.compared += 1
    error = next((found for found in refusals if isinstance(found, Exception)), None)
    if error is not None and dtype in declared:
        raise DeviceError(f"{what}: declared, but refused: {one_line(error)}") from error
    if error is None and samples and dtype not in declared:
        raise Mismatch(f"{what}: accepted, but not declared for {held_to}")


def _differentiated(judge: PairJudge, arguments: Arguments) -> Any:
    """The sum of all outputs, differentiated: the values do not matter here."""
    result = call(judge.op.op, arguments)
    if isinstance(result, Exception):
        return result
    outputs, inputs = _wanting_grad(result), _wanting_grad(arguments)
    try:
        return torch.autograd.grad(
            outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True
        )
    except Exception as error:
        return error


_QUESTIONS: dict[OpInfoCheck, Callable[[PairJudge, Any], None]] = {
    OpInfoCheck.FORWARD: _forward,
    OpInfoCheck.GRADIENT: _gradient,
    OpInfoCheck.OUT: _out,
    OpInfoCheck.INPLACE: _inplace,
    OpInfoCheck.NONCONTIGUOUS: _noncontiguous,
}
