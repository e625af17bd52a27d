"""Functions of torch that lists spell out, led through the engine one by one: what no list names costs nothing.

A function mode costs every call of the program. Where all lists name functions and no pattern stands for any number of
them, the functions themselves lead through the mode instead, each for the time of its own call. They are led in place:
the objects stay what they are, so a call is seen by whatever name, partial function or table the program makes it, and a
module that is imported meanwhile, or a tensor class that tells functions apart, finds the functions of torch.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from op_tools.engine import native, private
from op_tools.engine.modes import ApiMode
from op_tools.names import name_of, torch_functions

if TYPE_CHECKING:
    from op_tools.engine.core import Engine
    from op_tools.settings import NameFilter

# What may stand for more names than can be listed.
_OPEN_ENDED = re.compile(r"[*+{]")
_LITERAL = re.compile(r"\w*")
# Called from elsewhere than the program: the engine leads these through itself, but only beside the mode.
_OF_OTHERS = ("torch.compile.", "torch.distributed.")


def functions_named(names: NameFilter, operators: bool) -> frozenset[str] | None:
    """The functions of torch that a list spells out; None where only a mode can tell. `operators`: whether names of operators
    are meant as the program calls them, by torch.ops."""
    items = [item.strip() for item in names.listed.split(",") if item.strip()]
    if not operators:
        items = [item for item in items if _may_name_functions(item)]
    if any(_OPEN_ENDED.search(item) or item.startswith(_OF_OTHERS) for item in items):
        return None
    if any(_is_elsewhere(item) for item in items):
        return None
    # The value of an attribute is never a call.
    found = frozenset(n for n in torch_functions() if names.match(n) and not n.endswith(".__get__"))
    of_c, _ = _functions(found)
    return found if native.can_lead(of_c) else None


def _may_name_functions(item: str) -> bool:
    """Whether an item can stand for functions of torch: their names begin with torch."""
    if "|" in item:
        return True
    found = _LITERAL.match(item)
    begins = found.group() if found is not None else ""
    if item[len(begins) : len(begins) + 1] in ("*", "?", "{"):  # its last letter may not be there
        begins = begins[:-1]
    return begins.startswith("torch") or "torch".startswith(begins)


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


def _functions(names: Iterable[str]) -> tuple[list[Any], list[FunctionType]]:
    """The functions behind names, with the methods behind operators such as `x + y`: those of C, and those of Python."""
    known = torch_functions()
    found: dict[int, Any] = {}
    for name in names:
        methods = _operator_methods().get(name, ()) if name.startswith("torch.Tensor.") else ()
        for function in (known[name], *(getattr(torch.Tensor, method) for method in methods)):
            found[id(function)] = function
    functions = list(found.values())
    return (
        [function for function in functions if not isinstance(function, FunctionType)],
        [function for function in functions if isinstance(function, FunctionType)],
    )


# -- the methods behind operators --------------------------------------------------------------------------


class _Called(Exception):
    pass


class _FirstCall(TorchFunctionMode):
    """Notes the first function that is called, and calls nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name = name_of(func)
        raise _Called


@functools.cache
def _operator_methods() -> dict[str, list[str]]:
    """The methods behind `x + y` and the like, by the name that a mode gives them: torch.Tensor.add for __add__."""
    found: dict[str, list[str]] = {}
    operands = private.silently(_operands)
    for attribute in dir(torch.Tensor):
        if not (attribute.startswith("__") and attribute.endswith("__")):
            continue
        if attribute not in vars(torch._C.TensorBase) and attribute not in vars(torch.Tensor):
            continue  # every object has it
        name = _name_under_a_mode(getattr(torch.Tensor, attribute), operands)
        if name and name != f"torch.Tensor.{attribute}":
            found.setdefault(name, []).append(attribute)
    return found


def _operands() -> list[tuple[torch.Tensor, ...]]:
    with native.in_tool:
        x, n = (torch.ones(1, 1, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.int64))
    return [(x, x), (n, n), (x,)]


def _name_under_a_mode(method: Any, operands: list[tuple[torch.Tensor, ...]]) -> str:
    if not isinstance(method, FunctionType) and not native.can_lead([method]):
        return ""
    for given in operands:
        seen = _FirstCall()
        try:
            with native.in_tool, seen:
                method(*given)
        except Exception:  # as a rule because it was seen; or not for these operands
            pass
        if seen.name:
            return seen.name
    return ""


# -- functions of Python -----------------------------------------------------------------------------------


class _PythonFunction:
    """One that leads through the mode by its code, which is exchanged: the function stays the object that it is."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._code = code = function.__code__
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        self._ours = _code_that_calls(native.led(original), code)
        # What is asked for its parameters answers from its code.
        self._signs = not hasattr(function, "__wrapped__") and "__signature__" not in vars(function)

    def lead(self) -> None:
        function = self._function
        if function.__code__ is self._code:
            if self._signs:
                function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
            function.__code__ = self._ours

    def release(self) -> None:
        function = self._function
        if function.__code__ is self._ours:  # or somebody has exchanged it since
            function.__code__ = self._code
            if self._signs:
                vars(function).pop("__signature__", None)


def _code_that_calls(target: Any, like: CodeType) -> CodeType:
    """Code that calls an object, to stand where other code stood: at the same line of the same file, with its free variables."""
    free = ", ".join(like.co_freevars)
    source = (
        f"def maker({free}):\n"
        " def function(*_args, **_kwargs):\n"
        "  _target = 1.5\n"
        "  return _target(*_args, **_kwargs)\n"
        f"  ({free})\n"
    )
    scope: dict[str, Any] = {}
    exec(source, scope)
    code: CodeType = next(value for value in scope["maker"].__code__.co_consts if isinstance(value, CodeType))
    return code.replace(
        co_consts=tuple(target if value == 1.5 else value for value in code.co_consts),
        co_filename=like.co_filename, co_name=like.co_name, co_qualname=like.co_qualname,
        co_firstlineno=like.co_firstlineno,
    )  # fmt: skip


# -- all of them -------------------------------------------------------------------------------------------


class NamedFunctions:
    """The functions that lead through the engine now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: frozenset[str] = frozenset()
        self._python: list[_PythonFunction] = []
        self._compiled_runs = 0

    @property
    def is_on(self) -> bool:
        """Whether some function leads through the engine."""
        return bool(self._names)

    def sync(self, names: Iterable[str]) -> None:
        """Lead these functions through the engine, and no others."""
        wanted = frozenset(names)
        with self._engine.lock:
            if wanted == self._names:
                return
            self._release()
            try:
                self._lead(wanted)
            except BaseException:
                self._release()
                raise

    def _lead(self, names: frozenset[str]) -> None:
        self._names = names
        if not names:
            return
        of_c, of_python = _functions(names)
        self._python = [_PythonFunction(function) for function in of_python]
        native.lead_c_functions(ApiMode(self._engine), of_c)
        if not self._compiled_runs:
            self._put()

    def _release(self) -> None:
        try:
            self._take_back()
        finally:
            native.release_c_functions()
        self._names, self._python = frozenset(), []

    def _put(self) -> None:
        for function in self._python:
            function.lead()

    def _take_back(self) -> None:
        for function in self._python:
            function.release()

    def enter_compiled(self) -> None:
        """Show the compiler the code that it knows, while a compiled callable runs."""
        with self._engine.lock:
            self._compiled_runs += 1
            self._take_back()

    def leave_compiled(self) -> None:
        """The compiled callable is done."""
        with self._engine.lock:
            self._compiled_runs -= 1
            if not self._compiled_runs:
                self._put()
