"""A script or a module as `__main__`, as the interpreter itself would run it.

`python script.py` and `python -m module` are the model: sys.argv, sys.path[0], `__file__`, `__spec__`, and a module in
sys.modules that stays there, so that pickling, multiprocessing and exit handlers find what they look for.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

__all__ = [
    "CannotRun",
    "Program",
    "exit_code_of",
    "expect_module",
    "prepare_module",
    "prepare_script",
    "without_our_frames",
]

_PACKAGES = str(Path(__file__).resolve().parent.parent)
# What stands between a program and torch. Where an error is raised in one of these it is shown, but the engine of the
# tools never raises: it calls the operator that does.
_OURS = tuple(os.path.join(_PACKAGES, name) + os.sep for name in ("dicore", "_ditorch", "op_tools"))
_ENGINE = os.path.join(_PACKAGES, "op_tools", "engine") + os.sep


class CannotRun(Exception):
    """There is no program to run; the message says why and what to do."""


@dataclass(frozen=True)
class Program:
    """A program that is ready to run: its code and what `__main__` must hold."""

    code: CodeType
    path: str
    shown_as: str
    attributes: dict[str, Any]

    def run(self, arguments: Sequence[str]) -> None:
        """Run it; whatever it raises comes out."""
        main = ModuleType("__main__")
        vars(main).update(
            __file__=self.path, __builtins__=builtins, __annotations__={}, __cached__=None, __doc__=None
        )
        vars(main).update(self.attributes)
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # what a spawned process calls it in what it sends back
            sys.modules["__mp_main__"] = main
        sys.argv[:] = [self.shown_as, *arguments]
        exec(self.code, vars(main))


def _search_first(folder: str, ours_is_first: bool) -> None:
    """Put the folder of the program where the interpreter would: in the place of ours, if it has put ours first."""
    if ours_is_first and not sys.flags.safe_path:
        sys.path[:1] = [folder]
    elif not ours_is_first and not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def prepare_script(script: str, *, ours_is_first: bool = True) -> Program:
    """Read and compile a file. Raises CannotRun, and SyntaxError where Python would.

    `ours_is_first`: sys.path begins with a folder of ours that is to make room; not so in a process started with -P.
    """
    if not os.path.exists(script):
        raise CannotRun(f"{script} does not exist. Give the path of a Python script, or -m and a module.")
    if os.path.isdir(script):
        raise CannotRun(
            f"{script} is a folder. Give a Python script in it, or -m and a module that can be imported."
        )
    path = os.path.abspath(script)
    _search_first(os.path.dirname(os.path.realpath(script)), ours_is_first)
    return Program(
        code=_compiled(script, path),
        path=path,
        shown_as=script,
        attributes={
            "__loader__": importlib.machinery.SourceFileLoader("__main__", path),
            "__package__": None,
            "__spec__": None,
        },
    )


def _compiled(script: str, path: str) -> CodeType:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CannotRun(f"{script} cannot be read: {error.strerror}. Check the file and its mode.") from error
    if b"\0" in content:
        raise CannotRun(f"{script} is not a Python program: it is a binary file. Give a Python script.")
    try:
        # Our own `from __future__` imports must not become the script's.
        return compile(content, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        if script.endswith((".py", ".pyw")):
            raise
        location = f" (line {error.lineno}: {error.msg})" if error.lineno else f" ({error.msg})"
        raise CannotRun(f"{script} is not a Python program{location}. Give a Python script.") from error


def expect_module(name: str, arguments: Sequence[str], *, ours_is_first: bool = True) -> None:
    """Make ready for prepare_module, and look as far as one can without importing anything. Raises CannotRun."""
    _search_first(os.getcwd(), ours_is_first)
    sys.argv[:] = ["-m", *arguments]
    if "." in name:
        _found(name.partition(".")[0], shown_as=name)
    else:
        _found(name)


def prepare_module(name: str) -> Program:
    """Find a module, or the `__main__` of a package, as `python -m` does. Raises CannotRun.

    That imports the packages it is in: what they raise comes out as it is, and is the program's own.
    """
    _import_parent(name)
    spec = _found(name)
    if spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        _import_parent(name)
        spec = _found(name, "is a package without a __main__ and cannot be run")
    read = getattr(spec.loader, "get_code", None)
    code = read(name) if read is not None else None
    if code is None:
        raise CannotRun(f"module {name} holds no Python code that could be run. Give a module in Python.")
    return Program(
        code=code,
        path=str(spec.origin),
        shown_as=str(spec.origin),
        attributes={
            "__loader__": spec.loader,
            "__package__": spec.parent,
            "__spec__": spec,
            "__cached__": spec.cached,
        },
    )


def _import_parent(name: str) -> None:
    parent = name.rpartition(".")[0]
    if not parent:
        return
    try:
        __import__(parent)
    except ImportError as error:
        # That the parent is not there is said when the module is looked for. All else is an error inside of it.
        if error.name is None or not f"{parent}.".startswith(f"{error.name}."):
            raise


def _found(name: str, problem: str = "was not found", shown_as: str = "") -> importlib.machinery.ModuleSpec:
    advice = (
        "Give the name that `import` would take, without .py; it is looked for in the working folder too."
    )
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CannotRun(f"module {shown_as or name} {problem}: {error}. {advice}") from error
    if spec is None:
        raise CannotRun(f"module {shown_as or name} {problem}. {advice}")
    return spec


def exit_code_of(end: SystemExit) -> int:
    """The exit code that the interpreter would leave with; says on standard error what it would say."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def without_our_frames(error: BaseException, program: CodeType) -> None:
    """Take what is before the program, and what is ours inside it, out of the tracebacks of an exception."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _stripped(current, program)
        waiting += [current.__cause__, current.__context__]


def _stripped(error: BaseException, program: CodeType) -> TracebackType | None:
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is program:
            frames.clear()
        if not trace.tb_frame.f_code.co_filename.startswith(_ENGINE):
            frames.append(trace)
        trace = trace.tb_next
    # An error raised by our own code is ours to show, but a file that we compile or import says itself where it is wrong.
    own = 0 if isinstance(error, SyntaxError) else 1
    kept = [frame for n, frame in enumerate(frames) if n >= len(frames) - own or not _is_ours(frame)]
    if not kept:
        return None
    for frame, following in zip(kept, [*kept[1:], None], strict=True):
        frame.tb_next = following
    return kept[0]


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OURS)
