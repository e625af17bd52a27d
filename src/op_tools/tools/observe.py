"""OpObserve: what every operator is called with and what it returns."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, ClassVar

import torch

from dicore.settings import flag, setting
from op_tools import describe, tables
from op_tools.engine import Call
from op_tools.results import LOCATION_COLUMNS
from op_tools.settings import ToolSettings, level_setting
from op_tools.tool import LevelTool
from op_tools.trees import tensors_of


@dataclasses.dataclass(frozen=True)
class ObserveSettings(ToolSettings):
    """Settings of OpObserve."""

    list: str = setting(".*", "OP_OBSERVE_LIST", str, "operators to observe")
    disable_list: str = setting("", "OP_OBSERVE_DISABLE_LIST", str, "operators to leave out")
    level: str = level_setting("OP_OBSERVE_LEVEL")
    statistics: bool = setting(False, "OP_OBSERVE_STATISTICS", flag, "note the statistics of every output")


class _Statistics:
    """Figures of tensors that stay on the device, as small tensors, until many are read at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._waiting: list[tuple[dict[str, Any], list[torch.Tensor | None]]] = []

    def note(self, row: dict[str, Any], result: Any) -> int:
        """Keep a row until its figures are read; the number of rows that wait."""
        with torch.no_grad():
            figures = [_figures(tensor) for tensor in tensors_of(result) if tensor.is_floating_point()]
        with self.lock:
            self._waiting.append((row, figures))
            return len(self._waiting)

    def read(self) -> list[dict[str, Any]]:
        """The rows that wait, each with its `stats`. This waits for the device, once."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for _, figures in waiting:
            for values in figures:
                if values is not None:
                    by_device.setdefault(values.device, []).append(values)
        with torch.no_grad():
            read = {device: iter(torch.stack(values).tolist()) for device, values in by_device.items()}
        for row, figures in waiting:
            # The last figure is a count.
            found = [None if values is None else next(read[values.device]) for values in figures]
            row["stats"] = [None if values is None else [*values[:4], int(values[4])] for values in found]
        return [row for row, _ in waiting]


def _figures(tensor: torch.Tensor) -> torch.Tensor | None:
    """Least, largest, mean, root mean square and number of non-finite values, which count as zero in the others."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return None
    try:
        values = tensor.detach().float()
        finite = values.isfinite()
        values = values.where(finite, 0.0)
        count = values.numel()
        rms = torch.linalg.vector_norm(values) / count**0.5
        lost = count - finite.sum().float()
        return torch.stack((*torch.aminmax(values), values.mean(), rms, lost))
    except (RuntimeError, NotImplementedError):  # a subclass or a device that has no such operator
        return None


class OpObserve(LevelTool):
    """Notes shape, dtype, strides, device and values of the arguments and results of each call."""

    section = "observe"
    command_name = "observe"
    feature = "dump_op_args"
    order = 50
    hook_name = "OpObserveHook"
    schema = ObserveSettings
    result_folder = "op_observe_result"
    result_file = "op_observe_info"
    columns: ClassVar = ("forward_id", "name", "input", "output", "stats", *LOCATION_COLUMNS, "error_info")
    takes_compiled = True
    _statistics: _Statistics | None = None

    def opened(self) -> None:
        self.calls = 0
        self._statistics = _Statistics() if self.settings.statistics else None

    def before(self, call: Call) -> None:
        self.say_applied(call.name)
        # In-place operators change their inputs: what went in is read before.
        if self.settings.verbose:
            call.notes[self] = describe.rows_of(call.name, "inputs", call.args, call.kwargs)
        else:
            call.notes[self] = describe.brief_call(call.args, call.kwargs)

    def after(self, call: Call, result: Any) -> None:
        inputs = call.notes.pop(self)
        self.calls += 1
        if self.settings.verbose:
            rows = inputs + describe.rows_of(call.name, "outputs", (result,))
            self.say(f"{call.name}    forward_id: {call.id}\n{self.call_site_text(call)}")
            self.say(tables.describe_table(rows) + "\n")
            inputs = describe.brief_call(call.args, call.kwargs)
        row = {**self.row_of(call), "input": inputs, "output": describe.brief(result)}
        results = self.open_results()
        if self._statistics is None:
            results.append(row)
        elif self._statistics.note(row, result) >= results.cache_size:
            results.extend(self._statistics.read())

    def stepped(self, step: int) -> None:
        self._write_statistics()

    def _write_statistics(self) -> None:
        if self._statistics is not None and self.results is not None:
            self.results.extend(self._statistics.read())

    def after_fork(self) -> None:
        super().after_fork()
        if self._statistics is not None:  # what waits is the parent's to write
            self._statistics = _Statistics()

    def closed(self) -> None:
        self._write_statistics()
        results = self.close_results()
        if results is not None:
            told = f"{self.calls} calls; arguments and results {results.saved}"
            self.say(f"op_tools: OpObserve saw {told}")
