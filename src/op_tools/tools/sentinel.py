"""OpSentinel: judges a few calls of every operator all the time, for jobs in production.

Which calls are looked at is decided below Python, by signature: each operator with each set of shapes comes round about once in
`refresh` steps. Inputs and results are copied without waiting for the device and judged on a thread of its own. The tool measures
what it costs and looks less often where that is more than its `budget`. Of several ranks each looks at other calls.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from dicore.console import counted
from dicore.settings import flag, setting, size
from op_tools.categories import may_draw
from op_tools.comparison.background import PATIENCE, Background
from op_tools.comparison.budget import Budget, Look
from op_tools.comparison.thinning import Thinned
from op_tools.engine import ENGINE, Call, native
from op_tools.memory_plot import size_text
from op_tools.results import rank_info
from op_tools.settings import ToolSettings
from op_tools.tools.autocompare import OpAutoCompare


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
        2.0, "OP_SENTINEL_BUDGET", float, "percent of the program's time that it may cost; 0: any"
    )
    queue: int = setting(64, "OP_SENTINEL_QUEUE", int, "calls that may wait to be judged; more are dropped")
    memory: int = setting(
        1 << 30,
        "OP_SENTINEL_MEMORY",
        size,
        "memory for the values of calls that wait; larger ones are left out",
    )
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


# While no calls are seen and no step comes: seconds, or so many times what was to be rested, until they are seen again.
_LEAST_PATIENCE, _PATIENCE_STEPS = 1.0, 5


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
    columns: ClassVar = (*OpAutoCompare.columns, "count")
    patience = PATIENCE
    has_budget = True

    def read_settings(self) -> None:
        super().read_settings()
        self._samples_kernels = self.only is None and ENGINE.has_native()

    def opened(self) -> None:
        super().opened()
        self._without_reference: set[str] = set()
        self._thinned = Thinned()
        self._chooser: Any = self.native_sampler or self.sampler
        self._budget = Budget(self.settings.budget, max(1, self.settings.refresh), self._chooser)
        self._seen = native.seconds_seeing()
        self._rests_until = 0.0  # at the latest, where no step comes

    def switched(self, on: bool) -> None:
        self._budget.switched(on)
        self._seen = native.seconds_seeing()

    def _open_background(self) -> None:
        self.native_sampler = native.sampler(
            self.sampler.every, max(1, self.settings.refresh), *self._share()
        )
        self._background = Background(self.settings.queue, self.settings.memory)
        self._background.watch = self._wake

    def _share(self) -> tuple[int, int]:
        ranks = rank_info()
        return (ranks["rank"], ranks["world_size"]) if self.settings.spread else (0, 1)

    # -- which calls -----------------------------------------------------------------------------------------

    def wants_aten(self, name: str, func: Any) -> bool:
        if not super().wants_aten(name, func) or not self.names.match(name):
            return False
        if may_draw(func, name) or _runs_on(func, self.settings.reference):
            return True
        self._without_reference.add(name)
        return False

    # -- what it costs ---------------------------------------------------------------------------------------

    def before(self, call: Call) -> None:
        started = time.perf_counter()
        signature = self.native_sampler.asked() if self.native_sampler is not None else 0
        super().before(call)
        seconds = time.perf_counter() - started
        deferred = call.notes.get((self, "deferred"))
        if deferred is None:
            self._budget.spend(seconds)
        else:
            deferred.look = Look(self._budget, signature)
            deferred.look.took(seconds)

    def after(self, call: Call, result: Any) -> None:
        started = time.perf_counter()
        deferred = call.notes.get((self, "deferred"))
        super().after(call, result)
        seconds = time.perf_counter() - started
        if deferred is None:
            self._budget.spend(seconds)
        else:
            deferred.look.took(seconds)

    @property
    def cost(self) -> float:
        """The part of the time since the start that was spent on looking."""
        return self._budget.part

    def stepped(self, step: int) -> None:
        started = time.perf_counter()
        super().stepped(step)
        if self.native_sampler is not None:
            self.native_sampler.set_share(*self._share())  # a program may become a rank after its start
        self._budget.adjust()
        self._rest()
        self._budget.spend(time.perf_counter() - started)

    def _rest(self) -> None:
        """Let calls go by unseen for some steps, so that seeing them stays within the budget too."""
        seen, self._seen = self._seen, native.seconds_seeing()
        self._budget.spend(self._seen - seen)
        if self._background is None or not self._background.is_running:
            return
        steps = self._budget.rest_after(self._seen - seen)
        patience = max(_LEAST_PATIENCE, _PATIENCE_STEPS * (steps + 1) * self._budget.step_seconds)
        self._rests_until = time.monotonic() + patience
        ENGINE.native.rest(self, steps > 0)

    def _wake(self) -> None:
        """A program that makes no more steps is looked at all the same."""
        if time.monotonic() > self._rests_until:
            ENGINE.native.rest(self, False)

    def after_fork(self) -> None:
        super().after_fork()
        ENGINE.native.rest(self, False)

    def closed(self) -> None:
        ENGINE.native.rest(self, False)
        super().closed()

    # -- what is kept and said -------------------------------------------------------------------------------

    def keep_row(self, call: Call, row: dict[str, Any]) -> list[dict[str, Any]]:
        return self._thinned.rows(call.name, row)

    def _conclude_run(self) -> None:
        if self.results is not None:
            self.results.extend(self._thinned.rest())
        super()._conclude_run()
        for line in self._account():
            self.say(f"    {line}")

    def why_nothing(self) -> str:
        calls = self._chooser.calls
        return f"none of {counted(calls, 'call', ',')} was judged" if calls else super().why_nothing()

    def _account(self) -> Iterable[str]:
        """How much was looked at, what that cost, and what was not looked at."""
        chooser, budget = self._chooser, self.settings.budget
        every = f"about once in {counted(chooser.refresh, 'step', ',')}"
        signatures = counted(chooser.signatures, "signature", ",")
        yield f"looked at {chooser.taken:,} of {chooser.calls:,} calls of {signatures}, each {every}"
        limit = f"budget {budget:g} %" if budget > 0 else "no budget"
        yield f"cost {self.cost:.1%} of the time ({limit})".replace("%", " %", 1)
        if (background := self._background) is not None:
            most = size_text(background.most_bytes)
            passed_over = {
                "dropped: judging did not keep up": background.dropped,
                f"left out: larger than {most} (OP_SENTINEL_MEMORY)": background.too_large,
                "not judged any more: the program ended": background.lost,
            }
            yield from (
                f"{counted(number, 'call', ',')} {why}" for why, number in passed_over.items() if number
            )
        if self._without_reference:
            names = sorted(self._without_reference)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"not looked at, since {self.settings.reference} has no kernel: {', '.join(names[:3])}{more}"


def _runs_on(func: Any, device: str) -> bool:
    """Whether an operator can be run on a device of the reference at all."""
    key = {"cpu": "CPU"}.get(torch.device(device).type)
    return key is None or bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), key))
