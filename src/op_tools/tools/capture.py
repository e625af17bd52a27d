"""OpCapture: saves what operators are called with and return, forward and backward, for replay elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, ClassVar

import torch

from dicore.settings import flag, one_of, setting, size
from op_tools import describe, tables, writing
from op_tools.engine import Call
from op_tools.results import LOCATION_COLUMNS, rank_info
from op_tools.settings import ToolSettings, level_setting
from op_tools.storage import CallInfo, CaptureStore, Limits
from op_tools.storage.call_info import PARTS
from op_tools.tool import LevelTool
from op_tools.trees import tensors_of


def numbers(text: str) -> range | frozenset[int]:
    """Read `5`, `0,3,7` or `10-20`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        if len(words) == 1 and "-" in words[0]:
            first, last = words[0].split("-")
            return range(int(first), int(last) + 1)
        return frozenset(int(word) for word in words)
    except ValueError:
        raise ValueError(f"expected 5, 0,3 or 10-20, got {text!r}") from None


# What of the location of a call its files say, beside the source line.
_LOCATION = ("module", "level", "phase", "forward_name")


@dataclasses.dataclass(frozen=True)
class CaptureSettings(ToolSettings):
    """Settings of OpCapture."""

    list: str = setting(".*", "OP_CAPTURE_LIST", str, "operators to capture")
    disable_list: str = setting("", "OP_CAPTURE_DISABLE_LIST", str, "operators to leave out")
    level: str = level_setting("OP_CAPTURE_LEVEL")
    store: str = setting(
        "files", "OP_CAPTURE_STORE", one_of("files", "blobs"), "`files`, or `blobs`: every tensor once"
    )
    backward: bool = setting(True, "OP_CAPTURE_BACKWARD", flag, "capture gradients too")
    max_bytes: int | None = setting(
        None, "OP_CAPTURE_MAX_BYTES", size, "stop after so many bytes: `4096`, `64K`, `2G`", unset="no limit"
    )
    max_calls_per_signature: int | None = setting(
        None,
        "OP_CAPTURE_MAX_CALLS_PER_SIGNATURE",
        int,
        "calls of the same operator, shapes and dtypes",
        unset="no limit",
    )
    steps: Any = setting(
        None, "OP_CAPTURE_STEPS", numbers, "optimizer steps to capture: `5`, `0,3` or `10-20`", unset="all"
    )
    ranks: Any = setting(None, "OP_CAPTURE_RANKS", numbers, "ranks to capture, written likewise", unset="all")


class OpCapture(LevelTool):
    """Saves inputs, outputs and gradients of calls under op_capture_results/."""

    section = "capture"
    command_name = "capture"
    feature = "op_capture"
    order = 40
    hook_name = "OpCaptureHook"
    schema = CaptureSettings
    result_folder = "op_capture_results"
    result_file = "op_capture_info"
    columns: ClassVar = ("forward_id", "name", "folder", *LOCATION_COLUMNS, "error_info")

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.store: CaptureStore | None = None

    @property
    def wants_backward(self) -> bool:  # type: ignore[override]
        return bool(self.settings.backward) and not self.uses_aten

    def opened(self) -> None:
        limits = Limits(
            total_bytes=self.settings.max_bytes,
            calls_per_signature=self.settings.max_calls_per_signature,
            steps=self.settings.steps,
            ranks=self.settings.ranks,
        )
        self.store = CaptureStore(
            self.settings.results,
            self.settings.store,
            limits,
            self.say_saved,
        )

    def _info(self, call: Call) -> CallInfo:
        kind = call.signature() if self.settings.max_calls_per_signature else None
        location = self.location(call)
        return CallInfo(
            name=call.name,
            forward_id=call.id,
            time=time.strftime("%Y-%m-%d-%H-%M-%S"),
            step=call.step,
            device=str(call.device),
            call_site=self.call_site_text(call),
            signature=kind,
            parts=("input", "output"),
            extra={**{key: location[key] for key in _LOCATION}, **_autocast(call.device)},
            **rank_info(),
        )

    def before(self, call: Call) -> None:
        if self.store is None:
            return
        info = self._info(call)
        if not self.store.admits(info):
            return
        self.say_applied(call.name)
        call.notes[self] = info
        self.store.put(info, "input", call.args, call.kwargs)
        if self.settings.verbose:
            # An in-place operator changes what the table is to show.
            call.notes[self, "rows"] = describe.rows_of(call.name, "inputs", call.args, call.kwargs)

    def failed(self, call: Call) -> None:
        call.notes.pop(self, None)

    def after(self, call: Call, result: Any) -> None:
        info = call.notes.get(self)
        if info is None or self.store is None:
            return
        returned = result if type(result) is tuple else (result,)
        # Optimizers and normalisations write to tensors that they do not give back.
        kept = {id(tensor) for tensor in tensors_of(returned)}
        written = writing.written(call.func, call.name, call.args, call.kwargs)
        rest = tuple([tensor for tensor in written if id(tensor) not in kept])
        self.store.put(info, "output", returned, {"written": rest} if rest else None)
        self.open_results().append({**self.row_of(call), "folder": self.store.folder_of(info)})
        if self.settings.verbose:
            self.store.flush()
            rows = call.notes.pop((self, "rows")) + describe.rows_of(call.name, "outputs", (result,))
            where = self.call_site_text(call)
            self._print(f"{call.name}    forward_id:{call.id}/{info.time}    {where}", rows)

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        info = call.notes.get(self)
        if info is None or self.store is None:
            return
        info.parts = PARTS
        self.store.put(info, "grad_inputs", tuple(grad_inputs))
        self.store.put(info, "grad_outputs", tuple(grad_outputs))
        self.open_results().append(
            {**self.row_of(call), "folder": self.store.folder_of(info), "phase": "backward"}
        )
        if self.settings.verbose:
            self.store.flush()
            rows = describe.rows_of(call.name, "grad_output", _filled(grad_outputs))
            rows += describe.rows_of(call.name, "grad_inputs", _filled(grad_inputs))
            self._print(f"{call.name} forward_id:{call.id}", rows)

    def _print(self, title: str, rows: Any) -> None:
        self.say(title)
        self.say(tables.describe_table(rows, capture=True) + "\n\n\n")

    def stepped(self, step: int) -> None:
        if self.results is not None:
            self.results.flush()

    def closed(self) -> None:
        if self.store is None:
            return
        self.store.close()
        stats, self.store = self.store.stats, None
        self.close_results()
        state = "complete" if stats.complete else f"INCOMPLETE: {stats.reason}"
        self.say(
            f"op_tools: OpCapture saved {stats.files} files of {stats.calls} calls, {stats.written_bytes / 1e6:.1f} MB, "
            f"under {self.settings.results}/{self.result_folder} ({state})"
        )


def _autocast(device: torch.device) -> dict[str, Any]:
    """Whether the device computes in a lower dtype by itself here: replay must do the same."""
    if device.type == "cpu" or not torch.is_autocast_enabled(device.type):
        return {}
    return {"autocast": (True, torch.get_autocast_dtype(device.type))}


def _filled(values: list[Any]) -> list[Any]:
    """A call with one differentiable input shows one gradient, not a list with holes."""
    return [value for value in values if tensors_of(value)] or values
