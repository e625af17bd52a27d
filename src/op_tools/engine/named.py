"""Functions of torch that lists spell out, led through the engine one by one: what no list names costs nothing.

A function mode costs every call of the program. Where all lists name functions and no pattern stands for any number of
them, the names themselves lead through the engine instead: in torch, on torch.Tensor, and wherever a module has imported them.
A function that the program has put into an object of its own before the tool was started is not seen that way.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from op_tools.engine.modes import UNKNOWN, ApiMode
from op_tools.names import name_of, torch_functions

if TYPE_CHECKING:
    from op_tools.engine.core import Engine
    from op_tools.settings import NameFilter

# What may stand for more names than can be listed.
_OPEN_ENDED = re.compile(r"[*+{]")
# Called from elsewhere than the program: the engine leads these through itself, but only beside the mode.
_OF_OTHERS = ("torch.compile.", "torch.distributed.")


def functions_named(names: NameFilter, operators: bool) -> frozenset[str] | None:
    """The functions of torch that a list spells out; None where only a mode can tell. `operators`: whether names of operators
    are meant as the program calls them, by torch.ops."""
    items = [item.strip() for item in names.listed.split(",") if item.strip()]
    if not operators:
        items = [item for item in items if item.startswith("torch.") or _OPEN_ENDED.search(item)]
    if any(_OPEN_ENDED.search(item) or item.startswith(_OF_OTHERS) for item in items):
        return None
    if any(_is_elsewhere(item) for item in items):
        return None
    found = frozenset(name for name in torch_functions() if names.match(name))
    return None if found and _is_overridden() else found


def _is_elsewhere(item: str) -> bool:
    """Whether an item names a function that is not among those of torch that can be led through the engine."""
    pattern = re.compile(item)
    if any(map(pattern.fullmatch, torch_functions())):
        return False
    path = item.replace("\\", "")
    owner: Any = torch
    parts = path.split(".")
    if parts[0] != "torch":  # an operator that the program may call by torch.ops
        owner, parts = torch.ops, ["ops", *parts]
    try:
        functools.reduce(getattr, parts[1:], owner)
    except AttributeError:
        return not path.replace(".", "").replace("_", "").isalnum()  # a pattern, of which nothing is known
    return True


def _is_overridden() -> bool:
    """Whether the program has tensors of its own kind that override functions: they may tell functions apart by identity."""
    classes = list(torch.Tensor.__subclasses__())
    for kind in classes:
        classes += kind.__subclasses__()
        own = vars(kind).get("__torch_function__")
        if own not in (None, torch._C._disabled_torch_function_impl) and not kind.__module__.startswith(
            "torch."
        ):
            return True
    return False


class _FirstCall(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name = self.name or name_of(func)
        return func(*args, **(kwargs or {}))


@functools.cache
def _operator_methods() -> dict[str, list[str]]:
    """The methods behind `x + y` and the like, by the name that a mode gives them: torch.Tensor.add for __add__."""
    found: dict[str, list[str]] = {}
    for attribute in dir(torch.Tensor):
        if not (attribute.startswith("__") and attribute.endswith("__")):
            continue
        if attribute not in vars(torch._C.TensorBase) and attribute not in vars(torch.Tensor):
            continue  # every object has it
        name = _name_under_a_mode(attribute)
        if name and name != f"torch.Tensor.{attribute}":
            found.setdefault(name, []).append(attribute)
    return found


def _name_under_a_mode(attribute: str) -> str:
    for dtype, count in ((torch.float32, 1), (torch.int64, 1), (torch.float32, 0)):
        left, right = (torch.ones(1, 1, dtype=dtype, device="cpu") for _ in range(2))
        try:
            with torch.no_grad(), _FirstCall() as seen:
                getattr(left, attribute)(*(right,) * count)
        except Exception:  # not for these operands
            continue
        return seen.name
    return ""


class _ModeForOneCall(ApiMode):
    """On while a named function runs: torch hands over the name and the arguments in the form that a mode gets them."""

    def __init__(self, engine: Engine, originals: dict[Any, Any]) -> None:
        super().__init__(engine)
        self._originals = originals

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch looks methods up on torch.Tensor, where ours are now.
        return super().__torch_function__(self._originals.get(func, func), types, args, kwargs)


class NamedFunctions:
    """The functions that lead through the engine now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: frozenset[str] = frozenset()
        self._undo: list[Callable[[], None]] = []
        self._originals: dict[Any, Any] = {}
        self._compiled_runs = 0

    @property
    def is_on(self) -> bool:
        """Whether some function leads through the engine."""
        return bool(self._names)

    def sync(self, names: Iterable[str]) -> None:
        """Lead these functions through the engine, and no others."""
        wanted = frozenset(names)
        if wanted != self._names:
            self._names = wanted
            self._put(not self._compiled_runs)

    def leave_alone(self, yes: bool) -> None:
        """Show the compiler the originals, which it knows by identity, while a compiled callable runs; nests."""
        self._compiled_runs = max(0, self._compiled_runs + (1 if yes else -1))
        if self._names and self._compiled_runs == int(yes):
            self._put(not yes)

    def _put(self, routed: bool) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._originals = {}
        if routed and self._names:
            self._replace({name: torch_functions()[name] for name in self._names})

    def _replace(self, functions: dict[str, Any]) -> None:
        by_id: dict[int, tuple[Any, Any]] = {}
        operators = _operator_methods()  # asked while nothing is replaced yet
        for name, original in functions.items():
            ours = self._routed(original)
            by_id[id(original)] = (original, ours)
            if name.startswith("torch.Tensor."):
                self._set(torch.Tensor, name.removeprefix("torch.Tensor."), ours)
                for attribute in operators.get(name, ()):
                    self._set(torch.Tensor, attribute, self._routed(getattr(torch.Tensor, attribute)))
            elif name.startswith("torch.") and name.count(".") == 1:
                self._set(torch._VF, name.removeprefix("torch."), ours)
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            for attribute, value in list(vars(module).items()):
                pair = by_id.get(id(value))
                if pair is not None and pair[0] is value:
                    self._set(module, attribute, pair[1])

    def _set(self, owner: Any, attribute: str, ours: Any) -> None:
        own = vars(owner).get(attribute, UNKNOWN)
        setattr(owner, attribute, ours)

        def undo() -> None:
            if vars(owner).get(attribute) is not ours:
                return  # somebody has replaced it since
            if own is UNKNOWN:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)

        self._undo.append(undo)

    def _routed(self, original: Any) -> Callable[..., Any]:
        local, mode = self._engine.local, _ModeForOneCall(self._engine, self._originals)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if local.quiet or local.api_call is not None:
                return original(*args, **kwargs)
            with mode:
                return original(*args, **kwargs)

        self._originals[function] = original
        return function
