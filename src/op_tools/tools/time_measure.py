"""OpTimeMeasure: how long each operator takes on the device, forward and backward.

By default a pair of device events brackets each call and nothing waits (`op_tools.clocks`); the times are read in bulk. In
`sync` mode the device is waited for around each call, as for a chip without event timing.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import threading
from typing import Any, ClassVar

import torch.distributed as dist

from dicore.settings import flag, setting
from op_tools import describe, tables
from op_tools.clocks import CallClock, HookedClock, make_clocks
from op_tools.device_error import DeviceError
from op_tools.engine import Call, native
from op_tools.results import LOCATION_COLUMNS, TIME_CSV_COLUMNS, rank_info
from op_tools.settings import ToolSettings, level_setting
from op_tools.tool import Tool


@dataclasses.dataclass(frozen=True)
class TimeSettings(ToolSettings):
    """Settings of OpTimeMeasure."""

    list: str = setting(".*", "OP_TIME_MEASURE_LIST", str, "operators to measure")
    disable_list: str = setting("", "OP_TIME_MEASURE_DISABLE_LIST", str, "operators to leave out")
    level: str = level_setting("OP_TIME_MEASURE_LEVEL")
    sync: bool = setting(
        False,
        "OP_TIME_MEASURE_SYNC",
        flag,
        "wait for the device around each call instead of recording events",
    )
    top: int = setting(10, "OP_TIME_MEASURE_TOP", int, "lines of each summary")


# A call until its row is written: what is known of it but its times.
MeasuredCall = tuple[dict[str, Any], CallClock]


class OpTimeMeasure(Tool):
    """Measures calls, and sums them up by operator and by call site."""

    section = "time_measure"
    command_name = "time"
    feature = "measure_op_time"
    order = 30
    hook_name = "OpTimeMeasureHook"
    report_section = "time"
    schema = TimeSettings
    result_folder = "op_time_measure_result"
    result_file = "op_elasped_info"
    columns: ClassVar = (*TIME_CSV_COLUMNS, *LOCATION_COLUMNS, "error_info")
    wants_ties = True
    reads_gradients = False
    takes_compiled = True
    # Calls whose backward has not come yet; the oldest are written without it.
    most_waiting = 20_000

    @property
    def uses_api(self) -> bool:  # type: ignore[override]
        return self.settings.level == "api" or self.only is not None

    @property
    def uses_aten(self) -> bool:  # type: ignore[override]
        # DDP issues its collectives from C++: only the dispatch mode sees them.
        return self.settings.level == "aten" or (dist.is_available() and dist.is_initialized())

    @property
    def aten_everywhere(self) -> bool:  # type: ignore[override]
        return self.uses_aten

    def wants_aten(self, name: str, func: Any) -> bool:
        if self.settings.level == "aten":
            return self.names.match(name)
        return name.startswith("c10d.") and self.names.match(name)

    @property
    def takes_all(self) -> bool:
        return self.only is None

    def applies(self, call: Call) -> bool:
        if self.settings.level == "api" and call.level == "aten" and call.parent is not None:
            return False  # the collective's own call is measured as a whole
        return super().applies(call)

    def opened(self) -> None:
        # Single steps on lists are whole ones: only who writes holds the lock.
        self._entries: list[MeasuredCall] = []
        self._lock = threading.Lock()
        # The clocks of the compiled part wait for nothing and cannot be looked at as they go; with apply_feature the tool may
        # become verbose at any call.
        settings = self.settings
        self.wants_backward = settings.sync or settings.verbose or self.only is not None or not native.is_on()
        self._clocks = make_clocks(settings.sync, hooked=self.wants_backward)
        self._next_write = self._write_after(0)
        # (operator, call site) -> calls, milliseconds forward, milliseconds backward
        self.by_site: dict[tuple[str, str], list[float]] = {}

    def _write_after(self, kept: int) -> int:
        """With how many entries to write next, so that those that wait are not gone through at every call."""
        return min(kept + max(1, self.settings.max_cache_size, kept // 8), self.most_waiting)

    def before(self, call: Call) -> None:
        if call.name not in self._said or self.settings.verbose:
            self.say_applied(call.name)
        call.notes[self] = self._clocks.start(call.tensors(), call.level != "aten")

    def failed(self, call: Call) -> None:
        call.notes.pop(self, None)

    def after(self, call: Call, result: Any) -> None:
        clock = call.notes[self]
        clock.stop(result)
        if self.wants_backward:
            clock.waits = call.hooked
        where = call.owner_site()
        origin = ""
        if call.in_backward and call.origin is not None:
            origin = call.origin.name
        row = {
            "forward_id": call.id, "name": call.name, "call_site": where.text(), "module": where.module_path(),
            "step": call.step, "thread": call.thread, "level": call.level,
            "phase": "backward" if call.in_backward else "forward", "forward_name": origin, "unit": "ms",
            "input": describe.brief_call(call.args, call.kwargs), "output": describe.brief(result),
            "grad_inputs": (), "grad_outputs": (),
        }  # fmt: skip
        entries = self._entries
        entries.append((row, clock))
        if self.settings.verbose:
            self._print(call, clock, result)
        if len(entries) >= self._next_write:
            self._write(keep_waiting=True)

    def backward_begins(self, call: Call) -> None:
        call.notes[self].arrives()

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        clock = call.notes[self]
        if clock.passed(grad_inputs, grad_outputs) and self.settings.verbose:
            self._print_backward(call, clock, grad_inputs, grad_outputs)

    def _take(self, keep_waiting: bool) -> list[MeasuredCall]:
        """Take out the entries that are to be written: those that wait for nothing, and the oldest beyond the limit."""
        with self._lock:
            entries = self._entries[:]
            del self._entries[: len(entries)]
            surplus = 0
            if len(entries) >= self.most_waiting:
                # More than one at once, or the next call would find as many again.
                spare = min(self.settings.max_cache_size, self.most_waiting // 2)
                surplus = len(entries) - self.most_waiting + spare
            waiting = [entry for entry in entries[surplus:] if entry[1].waits] if keep_waiting else []
            if waiting:
                kept = set(map(id, waiting))
                entries = [entry for entry in entries if id(entry) not in kept]
                self._entries[:0] = waiting
            self._next_write = self._write_after(len(waiting))
        return entries

    def _write(self, keep_waiting: bool) -> None:
        trouble: Exception | None = None
        rows = []
        run = rank_info()
        for row, clock in self._take(keep_waiting):
            rows.append(row)
            row.update(run, start_us=clock.began_us, clock="host" if clock.on_host else "device")
            try:
                row["forward_elasped"], backward = clock.read()
            except (DeviceError, RuntimeError) as error:  # the program's: it gets it once the rows are safe
                trouble = trouble or (error if isinstance(error, DeviceError) else DeviceError(error))
                row["forward_elasped"] = math.nan
                continue
            if isinstance(backward, str):  # the tool's own
                trouble = trouble or RuntimeError(backward)
            elif backward is not None:
                row["backward_start_us"], row["backward_elasped"], *gradients = backward
                row["grad_inputs"], row["grad_outputs"] = map(describe.in_brackets, gradients)
        if rows:
            self.open_results().extend(rows)
            self._add_up(rows)
        if trouble is not None:
            raise trouble

    def _add_up(self, rows: list[dict[str, Any]]) -> None:
        with self._lock:
            by_site = self.by_site
            for row in rows:
                key = row["name"], row["call_site"]
                sums = by_site.get(key)
                if sums is None:
                    sums = by_site[key] = [0, 0.0, 0.0]
                sums[0] += 1
                for index, column in ((1, "forward_elasped"), (2, "backward_elasped")):
                    elapsed = row.get(column, 0.0)
                    if math.isfinite(elapsed):
                        sums[index] += elapsed

    @property
    def by_operator(self) -> dict[str, list[float]]:
        """Operator -> calls, milliseconds forward, milliseconds backward."""
        with self._lock:
            sums: dict[str, list[float]] = {}
            for (name, _), one in self.by_site.items():
                sums[name] = list(map(operator.add, sums.get(name, (0, 0.0, 0.0)), one))
        return sums

    def _print(self, call: Call, clock: HookedClock, result: Any) -> None:
        self.say(self.call_site_text(call))
        self.say(tables.describe_table(describe.capture_rows(call.name, call.args, call.kwargs, result)))
        row = {"name": call.name, "forward_id": call.id, "forward_elasped": clock.milliseconds()}
        self.say(tables.time_table([row]) + "\n\n")

    def _print_backward(self, call: Call, clock: HookedClock, grad_inputs: Any, grad_outputs: Any) -> None:
        self.say("\n" + tables.describe_table(describe.time_grad_rows(call.name, grad_outputs, grad_inputs)))
        row = {"name": call.name, "forward_id": call.id, "backward_elasped": clock.backward_milliseconds()}
        self.say(tables.time_table([row]))

    def after_fork(self) -> None:
        super().after_fork()
        if self.running:
            self.opened()  # the parent's calls are the parent's rows

    def closed(self) -> None:
        self._clocks.end()
        try:
            self._write(keep_waiting=False)
        finally:
            results = self.close_results()
            if results is None or not results.count:
                self.say("op_tools: OpTimeMeasure measured no call")
            else:
                self.say(self.summary(self.settings.top))
                self.say(f"op elasped info {results.saved}")

    def summary(self, top: int = 10) -> str:
        """The most expensive operators and call sites, as text."""
        by_operator = self.by_operator
        whole = sum(forward + back for _, forward, back in by_operator.values()) or 1.0

        def rows(table: dict[Any, list[float]]) -> list[list[Any]]:
            order = sorted(table.items(), key=lambda item: -(item[1][1] + item[1][2]))[:top]
            return [
                [
                    *(key if isinstance(key, tuple) else (key,)), int(count), f"{forward:.3f}", f"{back:.3f}",
                    f"{(forward + back) / whole:.1%}",
                ]
                for key, (count, forward, back) in order
            ]  # fmt: skip

        ends = ["calls", "forward_ms", "backward_ms", "share"]
        sites = [[name, _short(call_site), *rest] for name, call_site, *rest in rows(self.by_site)]
        return "\n".join(
            [tables.plain_table(["name", *ends], rows(by_operator)),
             tables.plain_table(["name", "call_site", *ends], sites)]
        )  # fmt: skip


def _short(call_site: str) -> str:
    file = call_site.split(" ", 1)[0]
    return "/".join(file.split("/")[-2:])
