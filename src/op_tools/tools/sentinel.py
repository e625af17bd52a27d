"""OpSentinel: judges a few calls of every operator all the time, for jobs in production.

Which calls are looked at is decided below Python, by signature: each operator with each set of shapes comes round once in
`refresh` steps. Inputs and results are copied without waiting for the device and judged on a thread of its own. The tool measures
what it costs and looks less often where that is more than its `budget`. Of several ranks each looks at other calls.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from dicore.settings import flag, setting
from op_tools import writing
from op_tools.categories import is_random
from op_tools.comparison.background import Background
from op_tools.engine import ENGINE, Call, native
from op_tools.reference.call_plan import plan_for
from op_tools.results import rank_info
from op_tools.settings import ToolSettings
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.transfer import Transfer
from op_tools.trees import flat_results


@dataclasses.dataclass(frozen=True)
class SentinelSettings(ToolSettings):
    """Settings of OpSentinel."""

    list: str = setting(".*", "OP_SENTINEL_LIST", str, "operators to look at, by the names of kernels")
    disable_list: str = setting("", "OP_SENTINEL_DISABLE_LIST", str, "operators to leave out")
    refresh: int = setting(
        50,
        "OP_SENTINEL_REFRESH",
        int,
        "steps in which each operator with each set of shapes comes round once",
    )
    rate: float = setting(0.0, "OP_SENTINEL_RATE", float, "share of all calls that is looked at besides")
    budget: float = setting(
        2.0, "OP_SENTINEL_BUDGET", float, "percent of the time of a step that it may cost; 0: any"
    )
    queue: int = setting(64, "OP_SENTINEL_QUEUE", int, "calls that may wait to be judged; more are dropped")
    spread: bool = setting(True, "OP_SENTINEL_SPREAD", flag, "let each rank look at other calls")
    reference: str = setting("cpu", "OP_SENTINEL_REFERENCE", str, "device that computes the reference")
    backward: bool = setting(True, "OP_SENTINEL_BACKWARD", flag, "look at what runs in backward too")
    save_failures: int = setting(
        20, "OP_SENTINEL_SAVE_FAILURES", int, "failing calls whose tensors are saved for replay"
    )

    @property
    def mode(self) -> str:
        """Which calls, in the words of OpAutoCompare."""
        return "sampled"


# Steps over which the cost is measured before the tool looks more or less often.
_WINDOW = 20
_LONGEST_REFRESH = 100_000


class OpSentinel(OpAutoCompare):
    """OpAutoCompare within a budget: sampled, in the background, spread over ranks."""

    section = "sentinel"
    command_name = "sentinel"
    feature = ""
    order = 15
    hook_name = "OpSentinelHook"
    schema = SentinelSettings
    result_folder = "op_sentinel_result"
    result_file = "op_sentinel_info"

    def read_settings(self) -> None:
        super().read_settings()
        self._samples_kernels = self.only is None and ENGINE.has_native()

    def opened(self) -> None:
        super().opened()
        self._background = Background(self.settings.queue)
        self._refresh = max(1, self.settings.refresh)
        self._hooks_s = 0.0  # spent on the program's own threads, since the window began
        self._window = (0, time.perf_counter(), 0.0)
        self.cost = 0.0
        if self._samples_kernels:
            ranks = rank_info()
            share, shares = (ranks["rank"], ranks["world_size"]) if self.settings.spread else (0, 1)
            self.native_sampler = native.sampler(self.sampler.every, self._refresh, share, shares)

    def wants_aten(self, name: str, func: Any) -> bool:
        return super().wants_aten(name, func) and self.names.match(name)

    def before(self, call: Call) -> None:
        if self._background.is_full:
            self._background.dropped += 1
            return
        started = time.perf_counter()
        if not call.observed or self._needs_the_program_to_wait(call):
            super().before(call)
        else:
            call.notes[self] = Transfer(self.settings.reference, non_blocking=True).call(
                call.args, call.kwargs
            )
        self._hooks_s += time.perf_counter() - started

    def _needs_the_program_to_wait(self, call: Call) -> bool:
        """Whether judging a call touches what belongs to the whole process, such as generators or the default dtype."""
        if is_random(call.func, call.name, call.args, call.kwargs):
            return True
        return bool(plan_for(call.func, self.settings.reference).needs_care)

    def after(self, call: Call, result: Any) -> None:
        started = time.perf_counter()
        if not call.observed or self._needs_the_program_to_wait(call):
            super().after(call, result)
        elif (inputs := call.notes.pop(self, None)) is not None:
            self._queue(call, result, inputs)
        self._hooks_s += time.perf_counter() - started

    def _queue(self, call: Call, result: Any, inputs: tuple[Any, Any]) -> None:
        home = Transfer(self.settings.reference, non_blocking=True)
        results = [home.tree(value) for value in flat_results(result)]
        written = {
            id(t): home.tensor(t) for t in writing.written(call.func, call.name, call.args, call.kwargs)
        }
        left = {index: written.get(id(tensor)) for index, tensor in enumerate(call.tensors())}
        copied = torch.Event(call.device)
        copied.record()
        call.owner_site()  # read now: the stack will be another one
        call.detach_to(*inputs)

        def judge() -> None:
            copied.synchronize()
            ENGINE.guarded(self, call, self._judge_results, call, results, inputs, results, left.__getitem__)

        self._background.submit(judge)

    def stepped(self, step: int) -> None:
        super().stepped(step)
        first, began, judged_before = self._window
        if step - first < _WINDOW:
            return
        now, judged = time.perf_counter(), self._background.seconds
        self.cost = (self._hooks_s + judged - judged_before) / max(now - began, 1e-9)
        self._window, self._hooks_s = (step, now, judged), 0.0
        if self.settings.budget <= 0 or self.native_sampler is None:
            return
        # What is looked at is proportional to 1 / refresh: half the way to where the cost would be the budget.
        aim = self._refresh * self.cost * 100 / self.settings.budget
        self._refresh = min(_LONGEST_REFRESH, max(self.settings.refresh, round((self._refresh + aim) / 2)))
        self.native_sampler.refresh = self._refresh

    def after_fork(self) -> None:
        super().after_fork()
        self._background = Background(self.settings.queue)  # the thread is the parent's

    def closed(self) -> None:
        self._background.close()
        super().closed()
        if self.native_sampler is None:
            return
        sampler, dropped = self.native_sampler, self._background.dropped
        lines = [
            f"    it looked at {sampler.taken:,} of {sampler.calls:,} calls; each of {sampler.signatures:,} signatures comes "
            f"round in about {self._refresh} steps; it cost {self.cost:.1%} of the time of the last steps",
            f"    {dropped:,} calls were dropped: judging did not keep up" if dropped else "",
        ]
        self.say("\n".join(filter(None, lines)))
