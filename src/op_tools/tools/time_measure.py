"""OpTimeMeasure: how long each operator takes on the device, forward and backward.

By default a pair of device events brackets each call and nothing waits; the times are read in bulk. In `sync` mode
the device is waited for around each call, as for a chip without event timing.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from op_tools import brief, describe
from op_tools.device_error import DeviceError
from op_tools.engine import Call
from op_tools.engine.call import tensors_of
from op_tools.settings import ToolSettings, flag, setting
from op_tools.tool import Tool


@dataclasses.dataclass(frozen=True)
class TimeSettings(ToolSettings):
    """Settings of OpTimeMeasure."""

    list: str = setting(".*", "OP_TIME_MEASURE_LIST", str, "operators to measure")
    disable_list: str = setting("", "OP_TIME_MEASURE_DISABLE_LIST", str, "operators to leave out")
    level: str = setting("api", "OP_TIME_MEASURE_LEVEL", str, "api, or aten for what reaches the kernels")
    sync: bool = setting(False, "OP_TIME_MEASURE_SYNC", flag, "wait for the device around each call")
    top: int = setting(10, "OP_TIME_MEASURE_TOP", int, "lines of each summary")


class Clock:
    """Start and end of one stretch of work on one device."""

    __slots__ = ("device", "end", "start", "sync")

    def __init__(self, device: torch.device, sync: bool) -> None:
        self.device = device
        self.sync = sync or device.type == "cpu"
        self.start: Any = self._mark()
        self.end: Any = None

    def _mark(self) -> Any:
        if self.sync:
            if self.device.type != "cpu":
                self._wait()
            return time.perf_counter()
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

    def milliseconds(self) -> float:
        if self.end is None:
            return float("nan")
        if self.sync:
            return float((self.end - self.start) * 1e3)
        self._wait()
        return float(self.start.elapsed_time(self.end))


class Entry:
    """One measured call, until its row is written."""

    __slots__ = ("backward", "forward", "grads", "row", "waits")

    def __init__(self, row: dict[str, Any], forward: Clock) -> None:
        self.row = row
        self.forward = forward
        self.backward: Clock | None = None
        self.grads: tuple[Any, Any] = ((), ())
        self.waits = False


class OpTimeMeasure(Tool):
    """Measures calls, and sums them up by operator and by call site."""

    section = "time_measure"
    hook_name = "OpTimeMeasureHook"
    schema = TimeSettings
    result_folder = "op_time_measure_result"
    result_file = "op_elasped_info"
    columns: ClassVar = (
        "name", "forward_id", "forward_elasped", "backward_elasped", "unit", "input", "output", "grad_inputs",
        "grad_outputs", "call_site", "module", "step", "rank", "phase",
    )  # fmt: skip
    wants_backward = True
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

    def applies(self, call: Call) -> bool:
        if self.settings.level == "api" and call.level == "aten" and call.parent is not None:
            return False  # the collective's own call is measured as a whole
        return super().applies(call)

    def opened(self) -> None:
        self._entries: collections.OrderedDict[int, Entry] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._serial = 0
        self.by_operator: dict[str, list[float]] = {}
        self.by_site: dict[tuple[str, str], list[float]] = {}

    def before(self, call: Call) -> None:
        self.say_applied(call.name)
        call.notes[self] = Clock(call.device, self.settings.sync)

    def failed(self, call: Call) -> None:
        call.notes.pop(self, None)

    def after(self, call: Call, result: Any) -> None:
        clock: Clock = call.notes.pop(self)
        clock.stop()
        row = {**self.row_of(call), "unit": "ms"}
        row["input"] = brief.of_call(call.args, call.kwargs)
        row["output"] = brief.brief(result)
        entry = Entry(row, clock)
        entry.waits = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(result))
        with self._lock:
            self._serial += 1
            call.notes[self] = self._serial
            self._entries[self._serial] = entry
            full = len(self._entries) >= min(self.settings.max_cache_size, self.most_waiting)
        if self.settings.verbose:
            self._print(call, entry, result)
        if full:
            self._write(keep_waiting=True)

    def backward_begins(self, call: Call) -> None:
        entry = self._entries.get(call.notes.get(self, -1))
        if entry is not None:
            entry.backward = Clock(call.device, self.settings.sync)

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        entry = self._entries.get(call.notes.get(self, -1))
        if entry is None or entry.backward is None:
            return
        entry.backward.stop()
        entry.waits = False
        entry.grads = (brief.brief(grad_inputs), brief.brief(grad_outputs))
        if self.settings.verbose:
            self._print_backward(call, entry, grad_inputs, grad_outputs)

    def _write(self, keep_waiting: bool) -> None:
        with self._lock:
            ready, kept = [], collections.OrderedDict()
            surplus = len(self._entries) - self.most_waiting
            for serial, entry in self._entries.items():
                if keep_waiting and entry.waits and surplus <= 0:
                    kept[serial] = entry
                else:
                    ready.append(entry)
                surplus -= 1
            self._entries = kept
        results = self.open_results()
        trouble: DeviceError | None = None
        for entry in ready:
            forward, back = float("nan"), None
            try:
                forward = entry.forward.milliseconds()
                back = entry.backward.milliseconds() if entry.backward is not None else None
            except DeviceError as error:  # the program's: it gets it once the rows are safe
                trouble = trouble or error
            entry.row.update(forward_elasped=forward, grad_inputs=entry.grads[0], grad_outputs=entry.grads[1])
            if back is not None:
                entry.row["backward_elasped"] = back
            results.append(entry.row)
            self._add_up(entry.row["name"], entry.row["call_site"], forward, back or 0.0)
        if trouble is not None:
            raise trouble

    def _add_up(self, name: str, place: str, forward: float, back: float) -> None:
        with self._lock:
            by_operator = self.by_operator.setdefault(name, [0, 0.0, 0.0])
            by_site = self.by_site.setdefault((name, place), [0, 0.0, 0.0])
            for sums in (by_operator, by_site):
                sums[0] += 1
                sums[1] += forward
                sums[2] += back

    def _print(self, call: Call, entry: Entry, result: Any) -> None:
        from op_tools import tables

        self.say(self.place_text(call))
        self.say(tables.describe_table(describe.capture_rows(call.name, call.args, call.kwargs, result)))
        row = {"name": call.name, "forward_id": call.id, "forward_elasped": entry.forward.milliseconds()}
        self.say(tables.time_table([row]) + "\n\n")

    def _print_backward(self, call: Call, entry: Entry, grad_inputs: Any, grad_outputs: Any) -> None:
        from op_tools import tables

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
            results, self.results = self.results, None
            if results is None or not results.count:
                self.say("op_tools: OpTimeMeasure measured no call")
            else:
                results.close()
                self.say(self.summary(self.settings.top))
                self.say(f"op elasped info saved to {results.csv_path}")

    def summary(self, top: int = 10) -> str:
        """The most expensive operators and call sites, as text."""
        from op_tools import tables

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
        sites = [[name, _short(place), *rest] for name, place, *rest in rows(self.by_site)]
        return "\n".join(
            [tables.plain_table(["name", *ends], rows(self.by_operator)),
             tables.plain_table(["name", "call_site", *ends], sites)]
        )  # fmt: skip


def _short(place: str) -> str:
    file = place.split(" ", 1)[0]
    return "/".join(file.split("/")[-2:])
