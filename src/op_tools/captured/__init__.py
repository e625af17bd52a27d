"""One captured call from its files to a verdict: load, admit, move to a device, run, judge.

`op-tools replay`, `diff` and `reproduce` are policies over this: what to run, which values to judge, what to do with the
verdicts.

    captured = read_item(item)
    func, captured = admitted(captured, device)
    execution = CallRunner(func, captured, device).run()
    judge = CallJudge(func, captured)
    verdicts = judge.judged_all(flat_results(execution.result), judge.forward)
"""

from __future__ import annotations

from op_tools.captured.admission import NotReplayable, TooLarge, admitted
from op_tools.captured.judge import CallJudge, CaptureMismatch
from op_tools.captured.load import CapturedCall, Item, find_items, read_item
from op_tools.captured.run import CallRunner, Execution

__all__ = [
    "CallJudge",
    "CallRunner",
    "CaptureMismatch",
    "CapturedCall",
    "Execution",
    "Item",
    "NotReplayable",
    "TooLarge",
    "admitted",
    "find_items",
    "read_item",
]
