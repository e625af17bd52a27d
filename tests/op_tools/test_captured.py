"""One captured call from its files to a verdict: what replay, diff and reproduce share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture

from op_tools.captured import (
    CallJudge,
    CallRunner,
    CapturedCall,
    CaptureMismatch,
    NotReplayable,
    TooLarge,
    admitted,
    find_items,
    read_item,
)
from op_tools.names import RefusedName
from op_tools.trees import flat_results, flat_tensors, map_leaves
from op_tools.verdict import Tolerance, Verdict, within_tolerance

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3, 2)


def call(name: str, *args: Any, **parts: Any) -> CapturedCall:
    empty: dict[str, Any] = {"outputs": None, "grad_inputs": None, "grad_outputs": None, "header": {}}
    return CapturedCall(name, args, parts.pop("kwargs", {}), **{**empty, **parts})


def judge(captured: CapturedCall) -> CallJudge:
    return CallJudge(*admitted(captured, CPU))


def test_a_call_is_loaded_admitted_run_and_judged(tmp_path: Path) -> None:
    (item,) = find_items(capture(tmp_path, torch.mm, (X, Y), change=lambda right: right + 1))
    func, captured = admitted(read_item(item), CPU)
    execution = CallRunner(func, captured, CPU).run()
    judged = CallJudge(func, captured)
    now = judged.judged_all(flat_results(execution.result), judged.forward)
    then = judged.judged_all(judged.captured_results(), judged.forward)
    assert [verdict.status for verdict in (*now, *then)] == ["same", "fail"]
    assert read_item(item, parts=()).outputs is None


def test_what_may_not_run_is_not_admitted() -> None:
    with pytest.raises(NotReplayable, match="which operator"):
        admitted(call(""), CPU)
    with pytest.raises(RefusedName):
        admitted(call("os.system", "true"), CPU)
    with pytest.raises(TooLarge, match="asks for"):
        admitted(call("torch.Tensor.repeat", X, 10**6, 10**6), CPU)
    small = call("torch.Tensor.repeat", X, 100, 100)
    admitted(small, CPU)
    with pytest.raises(TooLarge):
        admitted(small, CPU, memory_limit=1000)


def test_a_method_named_after_its_device_is_a_copy_to_this_one() -> None:
    captured = call("torch.Tensor.cuda", X, header={"device": "cuda:0"})
    func, moved = admitted(captured, CPU)
    assert func is torch.Tensor.to and moved.args[1] == CPU
    assert torch.equal(CallRunner(func, moved, CPU).run().result, X)


def test_results_that_do_not_fit_are_a_mismatch_and_unknown_writes_are_none() -> None:
    with pytest.raises(CaptureMismatch, match="2 values were captured, the reference gives 1"):
        judge(call("torch.mm", X, Y, outputs=(X, X))).captured_results()
    mean, variance = torch.zeros(3), torch.ones(3)
    arguments = (torch.randn(4, 3), mean, variance)
    norm = call(
        "torch.nn.functional.batch_norm", *arguments, kwargs={"training": True}, outputs=(arguments[0],)
    )
    judged = judge(norm)
    assert judged.forward.written == [1, 2]
    assert judged.captured_results()[1:] == [None, None]
    assert mean.tolist() == [0, 0, 0]  # computed on copies


def test_gradients_are_found_with_and_without_gaps() -> None:
    grad_x, grad_y = torch.ones(2, 3), torch.full((3, 2), 2.0)
    with_gaps = call("torch.mm", X, Y, grad_inputs=(None, grad_y), grad_outputs=(torch.ones(2, 2),))
    assert list(with_gaps.gradients) == [1]
    without = call("torch.mm", X, Y, grad_inputs=((grad_y,),), grad_outputs=((torch.ones(2, 2),),))
    found = judge(without)
    assert list(found.captured.gradients) == [1]
    (incoming,) = found.captured_grad_outputs() or ()
    assert incoming is not None and incoming.tolist() == [[1, 1], [1, 1]]
    both = judge(call("torch.mm", X, Y, grad_inputs=(grad_x, grad_y), grad_outputs=(torch.ones(3, 3),)))
    assert both.captured_grad_outputs() is None  # of another shape than the result
    reference = both.backward([torch.ones(2, 2)], [0, 1])
    statuses = [both.judged(grad, reference, index).status for index, grad in enumerate((grad_x * 2, grad_y))]
    assert statuses == ["same", "fail"]
    assert both.judged(None, reference, 0).status == "fail"


def test_a_verdict_is_one_row() -> None:
    row = Verdict.plain("fail", "no such value").as_row()
    assert list(row) == [
        "allclose", "cosine_similarity", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info", "verdict",
        "reason", "error_over_bound",
    ]  # fmt: skip
    assert (row["allclose"], row["verdict"], row["error_info"]) == (False, "fail", "no such value")
    near = within_tolerance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]), Tolerance(1.0, 0.0))
    assert (near.status, near.max_abs_diff) == ("pass", 0.5)
    assert near.max_relative_diff == pytest.approx(1 / 9)
    assert near.cosine_similarity == pytest.approx(27 / (5 * 29.25**0.5))
    assert within_tolerance(X, X.half(), Tolerance(0.0, 0.0)).error_info.startswith("Inconsistent dtypes")
    assert within_tolerance(X, Y, Tolerance(9.0, 9.0)).status == "fail"
    assert (
        within_tolerance(2, 2, Tolerance(0.0, 0.0)).status,
        within_tolerance(2, 3, Tolerance(9.0, 9.0)).status,
    ) == (
        "same",
        "fail",
    )


def test_trees_keep_their_form() -> None:
    found = torch.max(X, 1)
    changed = map_leaves(
        {"a": [found, (X.shape, None)]}, lambda leaf: 1 if isinstance(leaf, torch.Tensor) else leaf
    )
    assert type(changed["a"][0]) is type(found) and changed["a"][0].values == 1
    assert changed["a"][1] == (torch.Size([2, 3]), None)
    assert flat_results(changed) == [1, 1, 2, 3]
    assert [id(tensor) for tensor in flat_tensors([X, [Y]], {"k": X})] == [id(X), id(Y), id(X)]
