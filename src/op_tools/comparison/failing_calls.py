"""The tensors of calls that failed or were labelled, saved for replay and reproduce."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from op_tools.engine import Call
from op_tools.reference.recompute import Recomputation
from op_tools.results import rank_info
from op_tools.storage import CallInfo, CaptureStore
from op_tools.verdict import Verdict, is_label

if TYPE_CHECKING:
    from op_tools.tool import Tool


class FailingCalls:
    """Saves the first calls of each operator that fails: one that fails in every step must not take the room of others."""

    def __init__(self, tool: Tool, most: int) -> None:
        self._tool = tool
        self._most = most
        self._store: CaptureStore | None = None
        self._saved: Counter[tuple[bool, str]] = Counter()

    def wants(self, call: Call, verdicts: list[Verdict]) -> bool:
        """Whether the tensors of a call are to be saved; if so, it is counted."""
        failed = any(verdict.status == "fail" for verdict in verdicts)
        if not failed and not any(is_label(verdict.status) for verdict in verdicts):
            return False
        of_one = max(1, self._most // 4) if failed else 1
        saved = sum(count for (wrong, _), count in self._saved.items() if wrong == failed)
        if saved >= self._most or self._saved[failed, call.name] >= of_one:
            return False
        self._saved[failed, call.name] += 1
        return True

    def save(
        self,
        call: Call,
        inputs: tuple[Any, Any],
        results: Any,
        reference: Recomputation | None,
        device: str,
        grad_outputs: Any = None,
    ) -> None:
        """Save a call as <op>/<pid>/autocompare/<id>/<time>/{device,cpu}/.

        Without a reference, as for random numbers, only the device's side.
        """
        if self._store is None:
            self._store = CaptureStore(self._tool.settings.results, "files", None, self._tool.say_saved)
        store = self._store
        parts: Any = ("input", "output") if grad_outputs is None else ("input", "grad_inputs", "grad_outputs")
        both = CallInfo(
            name=call.name, forward_id=call.id, step=call.step, purpose="autocompare", device=device,
            call_site=self._tool.call_site_text(call), parts=parts, **rank_info(),
        )  # fmt: skip
        store.folder_of(both)  # one for the two sides
        sides = [("device", results)]
        if reference is not None:
            sides.append(("cpu", reference.own()))
        for side, values in sides:
            info = dataclasses.replace(both, side=side)
            store.put(info, "input", *inputs)
            if grad_outputs is None:
                store.put(info, "output", tuple(values))
            else:
                store.put(info, "grad_outputs", tuple(grad_outputs))
                store.put(info, "grad_inputs", tuple(values))
        store.flush()

    def close(self) -> str:
        """Wait for the files; why not all were saved, if that is so."""
        if self._store is None:
            return ""
        self._store.close()
        lost, self._store = self._store.stats.reason, None
        return lost
