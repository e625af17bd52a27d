"""OpOverflowCheck: the first NaN or Inf, and the call in which it was born.

A call is where a NaN is born when it has one in its results and none in its inputs. Where it is merely seen (every
call after that) is counted. An infinity that the program asks for, such as a mask filled with -inf, is not a birth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from dicore.settings import one_of, setting
from op_tools import describe, writing
from op_tools.categories import category_of
from op_tools.device_error import DeviceError
from op_tools.engine import Call
from op_tools.engine.call import is_wrapper
from op_tools.settings import ToolSettings
from op_tools.storages import StorageMap, fills_its_storage
from op_tools.tool import LevelTool, at_call_site, in_backward_of
from op_tools.trees import tensors_of


@dataclasses.dataclass(frozen=True)
class OverflowSettings(ToolSettings):
    """Settings of OpOverflowCheck."""

    list: str = setting(".*", "OP_OVERFLOW_CHECK_LIST", str, "operators to check")
    disable_list: str = setting("", "OP_OVERFLOW_CHECK_DISABLE_LIST", str, "operators to leave out")
    level: str = setting(
        "aten",
        "OP_OVERFLOW_CHECK_LEVEL",
        one_of("api", "aten"),
        "`aten` sees backward too; `api` only forward calls",
    )
    max_rows: int = setting(1000, "OP_OVERFLOW_CHECK_MAX_ROWS", int, "births written in detail")


class NonFinite(enum.Flag):
    """What values hold that is not finite."""

    NAN = enum.auto()
    INF = enum.auto()


CLEAN = NonFinite(0)


def find(tensor: torch.Tensor) -> NonFinite:
    """Look for NaN and Inf with one pass over the tensor; a second one only when there is something."""
    if is_wrapper(tensor):
        return CLEAN  # what it stands for is looked at by itself
    if tensor.is_nested:
        return _any(find(part) for part in tensor.unbind())
    if tensor.layout != torch.strided:
        tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return CLEAN
    try:
        values = tensor.detach()
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        if values.element_size() == 1:
            values = values.float()
        # A sum of finite values may overflow too, but a sum with a NaN or an Inf in it is never finite.
        dtype = torch.float64 if values.element_size() == 8 else torch.float32
        if math.isfinite(values.sum(dtype=dtype).item()):
            return CLEAN
        return _flags(values.isnan().any().item(), values.isinf().any().item())
    except NotImplementedError:
        raise
    except RuntimeError as error:
        raise DeviceError(error) from error


def _flags(nan: Any, inf: Any) -> NonFinite:
    return (NonFinite.NAN if nan else CLEAN) | (NonFinite.INF if inf else CLEAN)


def asked_for(value: Any) -> NonFinite:
    """NaN and Inf among the plain numbers of the arguments."""
    if isinstance(value, (float, complex)):
        parts = (value.real, value.imag)
        return _flags(any(map(math.isnan, parts)), any(map(math.isinf, parts)))
    if isinstance(value, (tuple, list)):
        return _any(asked_for(item) for item in value)
    if isinstance(value, dict):
        return _any(asked_for(item) for item in value.values())
    return CLEAN


def _any(found: Iterable[NonFinite]) -> NonFinite:
    return functools.reduce(operator.or_, found, CLEAN)


class Memories:
    """What was last seen in the memory of tensors: an in-place call overwrites what it found there."""

    def __init__(self) -> None:
        # With the versions a tensor of it may have for as long as nothing unseen has been written.
        self._seen: StorageMap[tuple[NonFinite, tuple[int, ...]]] = StorageMap()

    def is_clean(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is known to hold nothing, and nobody has written to it unseen."""
        seen = self._seen.get(tensor)
        return seen is not None and not seen[0] and _version(tensor) in seen[1]

    def note(
        self, tensor: torch.Tensor, found: NonFinite, counts_later: bool = False, was_clean: bool = False
    ) -> None:
        """Remember what a tensor holds. A view that holds nothing says nothing of the rest, unless that was clean.

        `counts_later`: the call has written the tensor, and autograd will count that when the call has returned.
        """
        if found or was_clean or fills_its_storage(tensor):
            version = _version(tensor)
            # Inference tensors count nothing; what is known of them is looked at again.
            versions = () if version is None else (version, version + 1) if counts_later else (version,)
            self._seen.put(tensor, (found, versions))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


@functools.lru_cache(maxsize=4096)
def _out_names(func: Any) -> frozenset[str]:
    if not isinstance(func, torch._ops.OpOverload):
        return frozenset({"out"})
    return frozenset(argument.name for argument in func._schema.arguments if argument.is_out)


def _inputs(call: Call) -> list[torch.Tensor]:
    """The tensors a call reads. What lies in an out= argument before the call is not asked."""
    outs = _out_names(call.func)
    return tensors_of((call.args, {key: value for key, value in call.kwargs.items() if key not in outs}))


def _written(call: Call) -> list[torch.Tensor]:
    """The tensors a call overwrites, whether it returns them or not."""
    found = writing.written(call.func, call.name, call.args, call.kwargs, statistics=False)
    return [tensor for tensor in found if tensor.device.type != "meta"]


class OpOverflowCheck(LevelTool):
    """Finds where NaN and Inf are born, in forward, backward and the optimizer."""

    section = "overflow_check"
    command_name = "overflow"
    feature = "overflow_check"
    order = 20
    hook_name = "OpOverflowCheckHook"
    report_section = "overflow"
    judges = True
    schema = OverflowSettings
    result_folder = "op_overflow_check_result"
    result_file = "op_overflow_check_info"
    columns: ClassVar = (
        "forward_id", "name", "kind", "status", "input", "output", "forward_name", "phase", "call_site", "module",
        "step", "rank", "error_info",
    )  # fmt: skip
    wants_ties = True
    takes_compiled = True

    # The list may name API calls too: what runs inside them is taken.

    def _names_an_operator(self) -> bool:
        return True

    def wants_parent(self, name: str) -> bool:
        return self.uses_aten and self.only is None and (self.names.match(name) or self.names.excludes(name))

    def wants_aten(self, name: str, func: Any) -> bool:
        return self.uses_aten and category_of(func, name) not in {"view", "uninitialised"}

    def applies(self, call: Call) -> bool:
        if not super().applies(call):
            return False
        if call.level != "aten":
            return True
        return self.names.match(*call.names())

    def opened(self) -> None:
        self.checked = 0
        self.births = 0
        self.seen = 0
        self.first: dict[str, Any] | None = None
        self._memories = Memories()

    def before(self, call: Call) -> None:
        if writing.may_write(call.func, call.name):
            held: dict[int, tuple[NonFinite, bool]] = {}
            for tensor in _inputs(call):
                if tensor.device.type == "meta" or id(tensor) in held:
                    continue
                clean = self._memories.is_clean(tensor)
                found = CLEAN if clean else find(tensor)
                held[id(tensor)] = (found, clean)
                if not clean:
                    self._memories.note(tensor, found)
            call.notes[self] = held

    def after(self, call: Call, result: Any) -> None:
        # Every operator is checked: that is worth a line each only when asked for.
        if self.settings.verbose or (call.level != "aten" and self.only is not None):
            self.say_applied(call.name)
        self.checked += 1
        held: dict[int, tuple[NonFinite, bool]] = call.notes.pop(self, {})
        written = {id(tensor): tensor for tensor in _written(call)}
        outputs = list({**{id(tensor): tensor for tensor in tensors_of(result)}, **written}.values())
        each = [find(tensor) for tensor in outputs]
        if any(each):
            self._report(call, result, outputs, each, held)
        for tensor, found in zip(outputs, each, strict=True):
            was_clean = held.get(id(tensor), (CLEAN, False))[1]
            counts_later = call.level == "aten" and not call.observed and id(tensor) in written
            self._memories.note(tensor, found, counts_later, was_clean)

    def _report(
        self,
        call: Call,
        result: Any,
        outputs: list[torch.Tensor],
        each: list[NonFinite],
        held: dict[int, tuple[NonFinite, bool]],
    ) -> None:
        found = _any(each)
        written = {id(tensor) for tensor in outputs}
        before = asked_for(call.args) | asked_for(call.kwargs)
        for tensor in _inputs(call):
            overwritten = id(tensor) in written
            before |= held.get(id(tensor), (CLEAN, False))[0] if overwritten else find(tensor)
        born_nan, born_inf = NonFinite.NAN in found & ~before, NonFinite.INF in found and not before
        if not born_nan and not born_inf:
            self.seen += 1
            return
        self.births += 1
        kind = "NaN" if born_nan else "Inf"
        row = {
            **self.row_of(call), "kind": kind, "status": "born", "input": describe.brief_call(call.args, call.kwargs),
            "output": describe.brief(result if tensors_of(result) else outputs),
        }  # fmt: skip
        if self.births <= self.settings.max_rows:
            self.open_results().append(row)
        if self.first is None:
            self.first = row
            self.say(self._birth_text(row, before))
        # A worker that is killed within the second of the log's timer must not take the row with it.
        if self.results is not None:
            with contextlib.suppress(OSError):  # the log has said it
                self.results.flush()

    @staticmethod
    def _birth_text(row: dict[str, Any], before: NonFinite) -> str:
        owner = f" of {row['forward_name']} (forward_id {row['forward_id']})" if row["forward_name"] else ""
        inputs = "an Inf among its inputs" if before else "finite inputs"
        return (
            f"op_tools: first {row['kind']}: born in {row['name']}, {row['phase']}{owner}, step {row['step']}, with {inputs}\n"
            f"    at {row['call_site']}\n"
            + (f"    in {row['module']}\n" if row["module"] else "")
            + f"    inputs {row['input']}\n    output {row['output']}"
        )

    @classmethod
    def fault(cls, row: Mapping[str, Any]) -> str:
        if row.get("status") != "born":
            return ""
        return f"{row.get('kind')} born in {row.get('name')}{in_backward_of(row)}{at_call_site(row)}"

    @classmethod
    def inconclusive(cls, rows: Sequence[Mapping[str, Any]]) -> str:
        return ""  # only births are rows

    def closed(self) -> None:
        results = self.close_results()
        if results is not None and self.first is not None:
            told = (
                f"{self.births} made a NaN or Inf, first {self.first['name']} at {self.first['call_site']}; "
                f"{self.seen} passed one on; rows {results.saved}"
            )
        elif self.seen:
            told = f"{self.seen} showed a NaN or Inf that came in with their inputs (data, weights, or a mask); none made one"
        else:
            told = "all finite"
        self.say(f"op_tools: OpOverflowCheck checked {self.checked} calls: {told}")
