"""Where in the user's program a call stands: source line and module path, cheap to note, formatted when asked."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any

import torch

from op_tools.engine import native

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Packages of this project that stand between a program and torch: `x.to("cuda")` is the program's line, not theirs.
_BETWEEN = tuple(
    os.path.join(os.path.dirname(_OURS[:-1]), name) + os.sep for name in ("_ditorch", "torch_dipu")
)
_MODULE_CALL = torch.nn.Module._call_impl.__code__
_ENGINE = tuple(
    os.path.join(os.path.dirname(__file__), name) for name in ("calls.py", "patches.py", "compiled.py")
)
_TORCH_OR_OURS, _PROGRAM, _THE_ENGINE, _A_MODULE = range(4)
# By id: the hash of a code object goes through all its names and constants. The object is held, or its id could come
# to stand for another one.
_kinds: dict[int, tuple[int, CodeType]] = {}


def _kind_of(code: CodeType) -> tuple[int, CodeType]:
    if len(_kinds) > 20_000:  # code made on the fly
        _kinds.clear()
    file = code.co_filename
    kind = _PROGRAM
    if code is _MODULE_CALL:
        kind = _A_MODULE
    elif file in _ENGINE:
        kind = _THE_ENGINE
    elif file.startswith((_TORCH, _OURS, *_BETWEEN, "<frozen", "<__array_function__")):
        kind = _TORCH_OR_OURS
    _kinds[id(code)] = entry = (kind, code)
    return entry


class CallSite:
    """A call site: the first frame that is neither torch's nor ours, and the modules that were being called."""

    __slots__ = ("_path", "_text", "code", "line", "modules", "stack")

    def __init__(
        self, code: CodeType | None, line: int, modules: tuple[Any, ...], stack: tuple[Any, ...] = ()
    ) -> None:
        self.code = code
        self.line = line
        self.modules = modules
        self.stack = stack
        # Many calls may share this one.
        self._text: str | None = None
        self._path: str | None = None

    def text(self) -> str:
        """`file:line function: source line`, the form of the printed tables."""
        if self._text is None:
            self._text = _NO_FRAME if self.code is None else _line_text(self.code, self.line)
        return self._text

    def stack_text(self) -> str:
        """The whole stack of the program's frames, innermost first."""
        return "\n".join(_line_text(code, line) for code, line in self.stack) or self.text()

    def module_path(self) -> str:
        """`model.layers.0.attention`-like path of the innermost module, from the outermost one's class name."""
        if self._path is None:
            self._path = self._read_path() if self.modules else ""
        return self._path

    def _read_path(self) -> str:
        alive = [module for reference in self.modules if (module := reference()) is not None]
        if not alive:
            return ""
        path = type(alive[0]).__name__
        for parent, child in itertools.pairwise(alive):
            path += f".{_name_in(parent, child)}"
        return path


_NO_FRAME = "(no Python frame of the program: called by a thread of the runtime)"


@functools.lru_cache(maxsize=4096)
def _line_text(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} {code.co_name}: {linecache.getline(code.co_filename, line).strip()}"


# The names of a module's descendants, kept while the module lives; asked again when a child is not among them.
_names_below: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()


def _name_in(parent: Any, child: Any) -> str:
    names = _names_below.get(parent)
    if names is None or id(child) not in names:
        names = _names_below[parent] = {id(module): name for name, module in parent.named_modules()}
    return names.get(id(child)) or type(child).__name__


def read(with_stack: bool = False) -> CallSite:
    """Read the call site from the current stack; `with_stack`: with all frames of the program."""
    if native.read_site is not None and not with_stack:
        return native.read_site()  # type: ignore[no-any-return]
    frame: FrameType | None = sys._getframe(1)
    frame_of_call: FrameType | None = None
    modules: list[Any] = []
    stack: list[tuple[CodeType, int]] = []
    in_tool = True
    cached = _kinds.get
    while frame is not None:
        code = frame.f_code
        kind = (cached(id(code)) or _kind_of(code))[0]
        if kind == _TORCH_OR_OURS:
            pass  # as most are
        elif kind == _A_MODULE:
            module = frame.f_locals.get("self")
            if module is not None:
                modules.append(weakref.ref(module))
        elif kind == _PROGRAM:
            if frame_of_call is None:
                frame_of_call = frame
            if with_stack:
                stack.append((code, frame.f_lineno))
        elif in_tool:
            # What lies between the engine and here is a tool, wherever its source is.
            in_tool, frame_of_call = False, None
            stack.clear()
        frame = frame.f_back
    modules.reverse()
    if frame_of_call is None:
        return CallSite(None, 0, tuple(modules), tuple(stack))
    return CallSite(frame_of_call.f_code, frame_of_call.f_lineno, tuple(modules), tuple(stack))


native.describe_sites(lambda code: _kind_of(code)[0], CallSite)
