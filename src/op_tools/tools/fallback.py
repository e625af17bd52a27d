"""OpFallback: runs operators on the CPU instead of the device, forward and backward.

The list names API calls; the work is done below autograd, at ATen level, where the schema says what is written, what
is a view and what is random. So in-place writes, `out=`, views, named tuples, dtypes and the autograd graph are the
same as on the device. Views cost nothing and stay; random operators stay unless they are listed by name.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from dicore.settings import setting
from op_tools import describe, tables
from op_tools.categories import category_of, is_random, names_in
from op_tools.device_error import DeviceError
from op_tools.engine import Call
from op_tools.settings import ToolSettings
from op_tools.tool import Tool
from op_tools.transfer import Transfer, copy_tensor
from op_tools.trees import map_tensors
from op_tools.writing import written, written_arguments


@dataclasses.dataclass(frozen=True)
class FallbackSettings(ToolSettings):
    """Settings of OpFallback."""

    list: str = setting(".*", "OP_FALLBACK_LIST", str, "operators to run on the CPU")
    disable_list: str = setting("", "OP_FALLBACK_DISABLE_LIST", str, "operators that stay on the device")


# Operators that only move a value between devices, or read one number.
_MOVES = names_in(
    "to _to_copy copy_ copy _copy_from _copy_from_and_resize _local_scalar_dense item is_nonzero _pin_memory"
    " pin_memory lift lift_fresh cpu cuda"
)


@functools.lru_cache(maxsize=4096)
def _stays(func: Any, name: str) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace.startswith(("c10d", "_c10d", "prim")):
        return True
    if func._schema.name.partition("::")[2] in _MOVES or torch.Tag.inplace_view in func.tags:
        return True
    # What is given back shares memory with an argument: only the device's own memory will do.
    if any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns):
        return True
    return category_of(func, name) in {"view", "uninitialised", "communication"}


def _names_another_device(call: Call) -> bool:
    """Whether the result is asked for on a device of its own: `zeros_like(x, device="cpu")`."""
    values = (*call.args, *call.kwargs.values())
    return any(isinstance(value, torch.device) and value.type != call.device.type for value in values)


# Take indices on the CPU beside a tensor on the device; everything else must be on one device.
_MIXES_DEVICES = names_in("index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put")


def _mixes_devices(call: Call) -> bool:
    """Whether tensors of the CPU stand beside those of the device where they may not: that is the program's error."""
    if call.func._schema.name.partition("::")[2] in _MIXES_DEVICES:
        return False
    return any(tensor.device != call.device and tensor.dim() > 0 for tensor in call.tensors())


class OpFallback(Tool):
    """Runs listed operators on the CPU."""

    section = "fallback"
    command_name = "fallback"
    feature = "fallback"
    order = 60
    hook_name = "OpFallbackHook"
    schema = FallbackSettings
    uses_aten = True
    aten_everywhere = True
    executes = True
    wants_ties = True

    def opened(self) -> None:
        self.ran: dict[str, int] = {}
        self.stayed: dict[str, str] = {}

    def wants_aten(self, name: str, func: Any) -> bool:
        return not _stays(func, name)

    def applies(self, call: Call) -> bool:
        if call.level == "api":
            return super().applies(call)
        if _names_another_device(call) or _mixes_devices(call):
            return False
        if self.only is not None or (call.parent is not None and call.parent.level != "api"):
            return self._takes_part(call)
        if is_random(call.func, call.name, call.args, call.kwargs):
            return any(self.names.names_exactly(name) for name in call.names())
        return self.names.match(*call.names())

    def _takes_part(self, call: Call) -> bool:
        """For apply_feature: what runs inside a call whose condition held, or in its backward."""
        taken = call.parent is not None and self in call.parent.tools
        taken = taken or (call.origin is not None and self in call.origin.marks)
        return taken and not is_random(call.func, call.name, call.args, call.kwargs)

    def execute(self, call: Call, run: Any) -> Any:
        if call.level != "aten":
            return run()
        try:
            result = self._on_cpu(call)
        except DeviceError as error:
            raise error.original from None
        except Exception as error:
            # The device decides what the program sees: its own error, or a result that did not fall back.
            result = run()
            self._note_stay(call, error)
            return result
        self.ran[call.name] = self.ran.get(call.name, 0) + 1
        return result

    def _note_stay(self, call: Call, error: Exception) -> None:
        reason = str(error).split("\n")[0][:160]
        self.stayed[call.name] = reason
        self.say_once(call, f"stays on the device, the CPU cannot run it: {type(error).__name__}: {reason}")

    def _on_cpu(self, call: Call) -> Any:
        device = call.device
        transfer = Transfer("cpu")
        args, kwargs = transfer.call(call.args, call.kwargs)
        try:
            result = call.func(*args, **kwargs)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
            return self._on_cpu_in_float32(call, device)
        self._write_back(call, transfer)
        twins = {id(copy): tensor for tensor, copy in transfer.pairs()}
        return _on_device(result, device, twins)

    def _on_cpu_in_float32(self, call: Call, device: torch.device) -> Any:
        """The CPU has no kernel for this half type: compute in float32, round the results to the half type."""
        half_dtypes = {t.dtype for t in call.tensors() if t.dtype in {torch.float16, torch.bfloat16}}
        if len(half_dtypes) != 1 or written_arguments(call.func, call.name):
            raise NotImplementedError("no kernel of the CPU for these dtypes")
        half = half_dtypes.pop()
        transfer = Transfer("cpu", cast={half: torch.float32})
        args, kwargs = transfer.call(call.args, call.kwargs)
        result = call.func(*args, **kwargs)
        return _on_device(result, device, {}, {torch.float32: half})

    @staticmethod
    def _write_back(call: Call, transfer: Transfer) -> None:
        for tensor in written(call.func, call.name, call.args, call.kwargs):
            if tensor.device.type == "cpu":
                continue
            copy = transfer.tensor(tensor)
            if tensor.shape != copy.shape:  # an out= argument that the operator resized
                tensor.resize_(copy.shape)
            tensor.copy_(copy)

    def before(self, call: Call) -> None:
        if call.level == "api":
            self.say_applied(call.name)
            call.as_origin().marks[self] = True
            if self.settings.verbose:
                # What the table shows of the CPU's side is read from a copy of its own.
                call.notes[self] = Transfer("cpu").call(call.args, call.kwargs)

    def after(self, call: Call, result: Any) -> None:
        if call.level != "api" or not self.settings.verbose:
            return
        args, kwargs = call.notes.pop(self)
        rows = describe.rows_of(call.name, "input(device)", call.args, call.kwargs)
        rows += describe.rows_of(call.name, "input(cpu)", args, kwargs)
        rows += describe.rows_of(call.name, "output(device)", (result,))
        rows += describe.rows_of(call.name, "output(cpu)", (Transfer("cpu").tree(result),))
        self.say(f"\n\n\n{call.name}    forward_id: {call.id}\n{self.call_site_text(call)}")
        self.say(tables.describe_table(rows) + "\n\n")

    def closed(self) -> None:
        count = sum(self.ran.values())
        left = f"; {len(self.stayed)} operators stayed on the device" if self.stayed else ""
        self.say(f"op_tools: OpFallback ran {count} calls of {len(self.ran)} operators on the CPU{left}")


def _on_device(result: Any, device: torch.device, twins: dict[int, torch.Tensor], cast: Any = None) -> Any:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in twins:
            return twins[id(tensor)]
        if cast and tensor.dtype in cast:
            tensor = tensor.to(cast[tensor.dtype])
        return copy_tensor(tensor, device)

    return map_tensors(result, moved)
