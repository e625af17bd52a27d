"""OpTimeMeasure: how long each operator takes on the device, forward and backward.

By default a pair of device events brackets each call and nothing waits; the times are read in bulk. In `sync` mode
the device is waited for around each call, as for a chip without event timing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import threading
import time
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from dicore.settings import flag, setting
from op_tools import describe, tables
from op_tools.device_error import DeviceError
from op_tools.engine import Call, site
from op_tools.results import LOCATION_COLUMNS, TIME_CSV_COLUMNS, RankInfo, rank_info
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


# From this process's own clock to the time of day, fixed so that calls keep their order and ranks their distance.
_SINCE_1970_NS = time.time_ns() - time.perf_counter_ns()


class Clock:
    """Start and end of one stretch of work on one device. Its events come from `spare` and go back there."""

    __slots__ = ("began", "device", "end", "spare", "start", "sync")

    def __init__(self, device: torch.device, sync: bool, spare: list[Any]) -> None:
        self.device = device
        self.sync = sync or device.type == "cpu"
        self.spare = spare
        # Where a trace puts the call: an event cannot say when it was recorded. Read before, so that a call never
        # seems to reach into the next one.
        self.began = time.perf_counter_ns()
        self.start: Any = self._mark()
        self.end: Any = None

    def _mark(self) -> Any:
        if self.sync:
            if self.device.type != "cpu":
                self._wait()
            return time.perf_counter()
        try:
            event = self.spare.pop()
        except IndexError:
            event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def _wait(self) -> None:
        try:
            if self.sync:
                torch.accelerator.synchronize(self.device)
            else:
                self.end.synchronize()
        except RuntimeError as error:  # of work the program has queued
            raise DeviceError(error) from error

    def stop(self) -> None:
        self.end = self._mark()

    def milliseconds(self) -> float | None:
        """The time between start and end; None if the end has not come."""
        if self.end is None:
            return None
        if self.sync:
            return float((self.end - self.start) * 1e3)
        self._wait()
        return float(self.start.elapsed_time(self.end))

    def began_us(self) -> float:
        """When the host started it, in microseconds since 1970."""
        began = self.start * 1e9 if self.sync else self.began
        return (began + _SINCE_1970_NS) / 1000

    def last_milliseconds(self) -> float | None:
        """The same, for the last time: the events are given back."""
        elapsed = self.milliseconds()
        if elapsed is not None and not self.sync:
            self.spare += (self.start, self.end)
            self.start = self.end = None
        return elapsed


@dataclasses.dataclass(slots=True, eq=False)
class MeasuredCall:
    """One measured call, until its row is written. The row itself is made then."""

    where: site.CallSite
    notes: tuple[Any, ...]
    forward: Clock
    waits: bool
    backward: Clock | None = None
    # A backward that may not reach all inputs of the call: its clock may never stop.
    begun: Clock | None = None
    grads: tuple[Any, Any] = ((), ())

    def row(self, run: RankInfo) -> dict[str, Any]:
        """What is known of the call but its times."""
        number, name, module, step, thread, level, origin, inputs, output = self.notes
        return {
            "forward_id": number, "name": name, "call_site": self.where.text(), "module": module, "step": step,
            "thread": thread, "level": level, "phase": "forward" if origin is None else "backward",
            "forward_name": origin or "", **run, "unit": "ms", "input": inputs, "output": output,
            "grad_inputs": self.grads[0], "grad_outputs": self.grads[1],
        }  # fmt: skip


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
    wants_backward = True
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

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # Never counted anew: the backward of a call of an earlier run must not find an entry of this one.
        self._serials = itertools.count(1)

    def opened(self) -> None:
        # Single steps on dicts and lists are whole ones: only who writes holds the lock.
        self._entries: dict[int, MeasuredCall] = {}
        self._lock = threading.Lock()
        self._spare: dict[torch.device, list[Any]] = {}
        self._next_write = self._write_after(0)
        self.by_operator: dict[str, list[float]] = {}
        self.by_site: dict[tuple[str, str], list[float]] = {}

    def _write_after(self, kept: int) -> int:
        """With how many entries to write next, so that those that wait are not gone through at every call."""
        return min(kept + max(1, self.settings.max_cache_size, kept // 8), self.most_waiting)

    def _clock(self, device: torch.device) -> Clock:
        spare = self._spare.get(device)
        if spare is None:
            spare = self._spare.setdefault(device, [])
        return Clock(device, self.settings.sync, spare)

    def before(self, call: Call) -> None:
        if call.name not in self._said or self.settings.verbose:
            self.say_applied(call.name)
        call.notes[self] = self._clock(call.device)

    def failed(self, call: Call) -> None:
        call.notes.pop(self, None)

    def after(self, call: Call, result: Any) -> None:
        clock: Clock = call.notes.pop(self)
        clock.stop()
        where, origin = call.owner_site(), None
        if call.in_backward:
            origin = call.origin.name if call.origin is not None else ""
        notes = (
            call.id, call.name, where.module_path() if where.modules else "", call.step, call.thread, call.level,
            origin, describe.brief_call(call.args, call.kwargs), describe.brief(result),
        )  # fmt: skip
        entry = MeasuredCall(where, notes, clock, call.hooked)
        call.notes[self] = serial = next(self._serials)
        self._entries[serial] = entry
        if self.settings.verbose:
            self._print(call, entry, result)
        if len(self._entries) >= self._next_write:
            self._write(keep_waiting=True)

    def backward_begins(self, call: Call) -> None:
        entry = self._entries.get(call.notes.get(self, -1))
        if entry is not None:
            entry.begun = self._clock(call.device)

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        entry = self._entries.get(call.notes.get(self, -1))
        if entry is None or entry.begun is None:
            return
        entry.begun.stop()
        entry.backward, entry.begun = entry.begun, None
        entry.grads = (describe.brief(grad_inputs), describe.brief(grad_outputs))
        entry.waits = False
        if self.settings.verbose:
            self._print_backward(call, entry, grad_inputs, grad_outputs)

    def _take(self, keep_waiting: bool) -> list[MeasuredCall]:
        """Take out the entries that are to be written: those that wait for nothing, and the oldest beyond the limit."""
        with self._lock:
            entries = self._entries
            surplus = 0
            if len(entries) >= self.most_waiting:
                # More than one at once, or the next call would find as many again.
                spare = min(self.settings.max_cache_size, self.most_waiting // 2)
                surplus = len(entries) - self.most_waiting + spare
            ready = []
            for index, (serial, entry) in enumerate(list(entries.items())):
                if not (keep_waiting and entry.waits) or index < surplus:
                    ready.append(entry)
                    del entries[serial]
            self._next_write = self._write_after(len(entries))
        return ready

    def _write(self, keep_waiting: bool) -> None:
        ready = self._take(keep_waiting)
        run = rank_info()
        rows: list[dict[str, Any]] = []
        trouble: DeviceError | None = None
        times: list[tuple[str, str, float | None, float | None]] = []
        for entry in ready:
            forward: float | None = float("nan")
            back: float | None = None
            try:
                forward = entry.forward.last_milliseconds()
                back = entry.backward.last_milliseconds() if entry.backward is not None else None
            except DeviceError as error:  # the program's: it gets it once the rows are safe
                trouble = trouble or error
            row = entry.row(run)
            row["forward_elasped"] = forward
            row["start_us"] = entry.forward.began_us()
            row["clock"] = "host" if entry.forward.sync else "device"
            if back is not None and entry.backward is not None:
                row["backward_elasped"] = back
                row["backward_start_us"] = entry.backward.began_us()
            rows.append(row)
            times.append((row["name"], row["call_site"], forward, back))
        if rows:
            self.open_results().extend(rows)
        self._add_up(times)
        if trouble is not None:
            raise trouble

    def _add_up(self, times: list[tuple[str, str, float | None, float | None]]) -> None:
        with self._lock:
            for name, call_site, *elapsed in times:
                by_operator = self.by_operator.setdefault(name, [0, 0.0, 0.0])
                by_site = self.by_site.setdefault((name, call_site), [0, 0.0, 0.0])
                measured = [ms if ms is not None and math.isfinite(ms) else 0.0 for ms in elapsed]
                for sums in (by_operator, by_site):
                    sums[:] = map(operator.add, sums, (1, *measured))

    def _print(self, call: Call, entry: MeasuredCall, result: Any) -> None:
        self.say(self.call_site_text(call))
        self.say(tables.describe_table(describe.capture_rows(call.name, call.args, call.kwargs, result)))
        row = {"name": call.name, "forward_id": call.id, "forward_elasped": entry.forward.milliseconds()}
        self.say(tables.time_table([row]) + "\n\n")

    def _print_backward(self, call: Call, entry: MeasuredCall, grad_inputs: Any, grad_outputs: Any) -> None:
        self.say("\n" + tables.describe_table(describe.time_grad_rows(call.name, grad_outputs, grad_inputs)))
        assert entry.backward is not None
        row = {"name": call.name, "forward_id": call.id, "backward_elasped": entry.backward.milliseconds()}
        self.say(tables.time_table([row]))

    def after_fork(self) -> None:
        super().after_fork()
        if self.running:
            self.opened()  # the parent's calls are the parent's rows

    def closed(self) -> None:
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
        whole = sum(forward + back for _, forward, back in self.by_operator.values()) or 1.0

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
            [tables.plain_table(["name", *ends], rows(self.by_operator)),
             tables.plain_table(["name", "call_site", *ends], sites)]
        )  # fmt: skip


def _short(call_site: str) -> str:
    file = call_site.split(" ", 1)[0]
    return "/".join(file.split("/")[-2:])
