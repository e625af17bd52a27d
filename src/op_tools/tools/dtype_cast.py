"""OpDtypeCast: computes operators in another dtype and gives the results back in the one they would have had.

`torch.bfloat16->torch.float32` runs a call on bfloat16 tensors in float32. In-place writes and `out=` reach the
program's own tensors; gradients flow back in the dtype the tensors have; views stay views.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from dicore.settings import setting
from op_tools import tables, writing
from op_tools.categories import category_of, names_in
from op_tools.engine import Call, private
from op_tools.settings import ToolSettings
from op_tools.tool import Tool
from op_tools.trees import map_tensors, tensors_of

DEFAULT = "torch.float16->torch.float32,torch.bfloat16->torch.float32"


def dtypes(text: str) -> str:
    """Check a cast dict; the text itself is what tables show."""
    parse(text)
    return text


def parse(text: str) -> dict[torch.dtype, torch.dtype]:
    """Read `torch.float16->torch.float32,torch.half->torch.bfloat16`."""
    casts: dict[torch.dtype, torch.dtype] = {}
    for item in filter(None, (word.strip() for word in text.split(","))):
        source, arrow, target = item.partition("->")
        found = [getattr(torch, name.strip().removeprefix("torch."), None) for name in (source, target)]
        if not arrow or not all(isinstance(dtype, torch.dtype) for dtype in found):
            raise ValueError(
                f"{item!r} is not a cast; expected FROM->TO with names of torch dtypes, several separated by commas, "
                f"such as {DEFAULT!r}"
            )
        casts[found[0]] = found[1]  # type: ignore[index, assignment]
    return casts


@dataclasses.dataclass(frozen=True)
class CastSettings(ToolSettings):
    """Settings of OpDtypeCast."""

    list: str = setting(".*", "OP_DTYPE_CAST_LIST", str, "operators to cast")
    disable_list: str = setting("", "OP_DTYPE_CAST_DISABLE_LIST", str, "operators to leave as they are")
    dict: str = setting(DEFAULT, "OP_DTYPE_CAST_DICT", dtypes, "which dtype becomes which")


# The program says which dtype or memory it wants: there is nothing to compute.
_CONVERSIONS = names_in(
    "to type type_as float half double bfloat16 int long short char byte bool cpu cuda contiguous pin_memory"
)


class OpDtypeCast(Tool):
    """Computes listed operators in another dtype."""

    section = "dtype_cast"
    command_name = "cast"
    feature = "cast_dtype"
    order = 70
    hook_name = "OpDtypeCastHook"
    schema = CastSettings
    executes = True

    def read_settings(self) -> None:
        super().read_settings()
        casts = parse(self.settings.dict).items()
        self.casts = {source: target for source, target in casts if source != target}

    def opened(self) -> None:
        self.count: dict[str, int] = {}
        self._native: dict[Hashable, Any] = {}

    def applies(self, call: Call) -> bool:
        if not super().applies(call):
            return False
        if category_of(call.func, call.name) in {"view", "uninitialised", "communication"}:
            return False
        if call.name.rpartition(".")[2] in _CONVERSIONS:
            return False
        return any(tensor.dtype in self.casts for tensor in call.tensors())

    def execute(self, call: Call, run: Any) -> Any:
        if call.level != "api":
            return run()
        cast = CallCast(self.casts)
        args, kwargs = cast.tree(call.args), cast.tree(call.kwargs)
        if not cast.copies:
            return run()
        kind = call.device.type
        under_autocast = kind != "cpu" and torch.is_autocast_enabled(kind)
        expected = self._expected(call, kind if under_autocast else None)
        if expected == []:
            return run()  # a question about the tensor itself
        try:
            if under_autocast:  # it would cast right back
                with torch.autocast(kind, enabled=False):
                    result = call.func(*args, **kwargs)
            else:
                result = call.func(*args, **kwargs)
        except Exception as error:
            if private.saving_is_hooked() and not isinstance(error, _ERRORS_OF_TORCH):
                raise  # of the hooks: a checkpoint stops computing again by an error of its own
            # The program's own dtype decides what it sees: a result, or its own error.
            result = run()
            reason = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            self.say_once(call, f"stays in its own dtype: {reason}")
            return result
        written = cast.written(writing.written_statistics(call.func, call.name, call.args, call.kwargs))
        if cast.shows_a_copy(result) or not (tensors_of(result) or written):
            # What looks like a view of its input must be a view of the program's tensor.
            return run()
        cast.write_back(written)
        result = cast.restore(result, expected)
        self._note(call, cast)
        return result

    def _expected(self, call: Call, autocast: str | None) -> list[torch.dtype] | None:
        """The dtypes the results would have without the cast, learnt once per signature from a run without data."""
        state = torch.get_autocast_dtype(autocast) if autocast else None
        key = (call.signature(), state, torch.get_default_dtype())
        if key not in self._native:
            if len(self._native) > 10_000:
                self._native.clear()
            # Autocast looks at the device: it takes fake tensors for those of the device, and meta tensors not.
            results = private.results_on_fake if autocast else private.results_on_meta
            found = results(call.func, call.args, call.kwargs)
            self._native[key] = None if found is None else [tensor.dtype for tensor in tensors_of(found)]
        return self._native[key]  # type: ignore[no-any-return]

    def _note(self, call: Call, cast: CallCast) -> None:
        self.count[call.name] = self.count.get(call.name, 0) + 1
        self.say_applied(call.name)
        if not self.settings.verbose:
            return
        dtypes = [tensor.dtype for tensor in call.tensors()]
        done = {f"input[{n}]": (own, self.casts[own]) for n, own in enumerate(dtypes) if own in self.casts}
        done |= {f"output[{index}]": change for index, change in enumerate(cast.restored)}
        rows = [
            {
                "name": call.name,
                "target": what,
                "action": f"{source} -> {target}",
                "config": self.settings.dict,
            }
            for what, (source, target) in done.items()
        ]
        self.say(tables.cast_table(rows))

    def closed(self) -> None:
        self.say(
            f"op_tools: OpDtypeCast cast {sum(self.count.values())} calls of {len(self.count)} operators "
            f"({self.settings.dict})"
        )


# What torch raises where it cannot compute something.
_ERRORS_OF_TORCH = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)


@contextlib.contextmanager
def _versions_counted() -> Iterator[None]:
    """Tensors made inside tell that somebody has written to them, in inference mode as well."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class CallCast:
    """The tensors of one call in their new dtypes, and the way back."""

    def __init__(self, casts: dict[torch.dtype, torch.dtype]) -> None:
        self.casts = casts
        self.back = {target: source for source, target in casts.items()}
        # By the id of the program's tensor: it, its copy, and the version of the copy before the call.
        self.copies: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self.restored: list[tuple[torch.dtype, torch.dtype]] = []

    def tree(self, value: Any) -> Any:
        return map_tensors(value, self._tensor)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        target = self.casts.get(tensor.dtype)
        if target is None:
            return tensor
        if id(tensor) not in self.copies:
            with _versions_counted():
                copy = tensor.to(target)
            self.copies[id(tensor)] = (tensor, copy, copy._version)
        return self.copies[id(tensor)][1]

    def shows_a_copy(self, result: Any) -> bool:
        """Whether a result is a view of a cast input (the input itself, written in place, does not count)."""
        copies = [copy for _, copy, _ in self.copies.values()]
        own = {id(copy) for copy in copies}
        memories = {copy.untyped_storage()._cdata for copy in copies if copy.layout == torch.strided}
        return any(
            id(tensor) not in own
            and tensor.layout == torch.strided
            and tensor.untyped_storage()._cdata in memories
            for tensor in tensors_of(result)
        )

    def written(self, silently: list[torch.Tensor]) -> list[torch.Tensor]:
        """The program's tensors whose copies the call has written to; `silently` without a new version."""
        silent = {id(tensor) for tensor in silently}
        return [
            tensor
            for tensor, copy, version in self.copies.values()
            if copy._version != version or id(tensor) in silent
        ]

    def write_back(self, written: list[torch.Tensor]) -> None:
        """Bring what the call wrote into its inputs to the program's tensors."""
        for tensor in written:
            copy = self.copies[id(tensor)][1]
            if copy.shape != tensor.shape:
                tensor.resize_(copy.shape)
            tensor.copy_(copy)

    def restore(self, result: Any, expected: list[torch.dtype] | None) -> Any:
        """The results in the dtypes they would have had."""
        twins = {id(copy): tensor for tensor, copy, _ in self.copies.values()}
        indices = itertools.count()

        def restored(value: torch.Tensor) -> torch.Tensor:
            index = next(indices)
            native = self.back.get(value.dtype, value.dtype)
            if expected is not None and index < len(expected):
                native = expected[index]
            if id(value) in twins and twins[id(value)].dtype == native:
                return twins[id(value)]
            if native == value.dtype or not value.is_floating_point():
                return value
            self.restored.append((value.dtype, native))
            return value.to(native)

        return map_tensors(result, restored)
