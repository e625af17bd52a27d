"""The compiled part, `op_tools._native`: calls that reach the kernels, observed without a mode and on every thread, or taken at
the device's own kernels by a tool that runs them in its own way.

A pure Python installation, or one for another torch, does not have it: then a dispatch mode does both, and autograd runs
other kernels while it is on. That is said once.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dicore import observers
from op_tools.engine import private
from op_tools.settings import NATIVE

if TYPE_CHECKING:
    from op_tools.engine.core import Engine
    from op_tools.tool import Tool

_native: Any = None
_missing = ""
try:
    _native = importlib.import_module("op_tools._native")
except ImportError as error:
    _missing = str(error)


def _nothing() -> None:
    pass


def is_on() -> bool:
    """Whether the compiled part is there and not switched off."""
    return _native is not None and bool(NATIVE.get_or_default())


# Around the work of the tools: what they call is neither observed, nor taken, nor seen by a profiler of the program.
hide: Callable[[], None] = _nothing if _native is None else _native.hide
show: Callable[[], None] = _nothing if _native is None else _native.show
# Around a call in which nobody looks inside.
skip: Callable[[], None] = _nothing if _native is None else _native.skip
unskip: Callable[[], None] = _nothing if _native is None else _native.unskip
# The call site of the program that the stack shows; None without the compiled part.
read_site: Callable[[], Any] | None = None if _native is None else _native.read_site

# Rows as lines of a CSV file; None without it.
csv_lines: Callable[[list[Any], tuple[str, ...]], bytes] | None = (
    None if _native is None else _native.csv_lines
)


def describe_sites(kind_of: Callable[[Any], int], make: Callable[..., Any]) -> None:
    """Tell `read_site` what a frame is and what it returns."""
    if _native is not None:
        _native.describe_sites(kind_of, make)


def writers(other: Callable[[Any], str], items: int) -> tuple[Any, Any]:
    """What writes a value, and the arguments of a call, on one line; None without the compiled part. `other` writes the rare."""
    if _native is None:
        return None, None
    _native.describe_values(other, items)
    return _native.brief, _native.brief_call


class NativeCalls:
    """Calls at ATen level for the tools of one engine, on while some tool wants them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._said = False
        self.observes = False
        # Whether some tool looks inside the calls at API level.
        self.looks_inside = False
        # Whether the compiled part goes through the autograd nodes of calls, marks them and measures their backward.
        self.walks_graphs = False
        self._taken: tuple[Any, ...] = ()
        self._undo: list[Callable[[], None]] = []

    def available(self) -> bool:
        """Whether calls at ATen level come from here, and not from a dispatch mode."""
        if is_on():
            return True
        if not self._said:
            self._said = True
            why = f"is not there ({_missing})" if _native is None else f"is switched off ({NATIVE.name}=0)"
            print(
                f"op_tools: the compiled part of the tools {why}: calls at ATen level are seen by a dispatch mode, and "
                "autograd runs other kernels for some operators while it is on.",
                file=sys.stderr,
            )
        return False

    def sync(self, tools: Iterable[Tool]) -> None:
        """Fit it to the tools that are on. All decisions are asked for again."""
        if _native is None:
            return
        self.walks_graphs = is_on()
        concerned = [tool for tool in tools if tool.uses_aten and self.available()]
        (observers.ACTIVE.add if concerned else observers.ACTIVE.discard)("op_tools")
        self._observe([tool for tool in concerned if not tool.executes])
        self._take([tool for tool in concerned if tool.executes])

    def _observe(self, tools: Sequence[Tool]) -> None:
        self.observes = bool(tools)
        self.looks_inside = any(tool.aten_everywhere for tool in tools)
        if not tools:
            _native.stop_observing()
            return
        named = {name for tool in tools for name in tool.device_types or ()}
        engine = self._engine
        _native.observe_devices(sorted(named), any(tool.device_types is None for tool in tools))
        waits = not any(tool.may_want_aten() for tool in tools)
        _native.observe(
            engine.decide_observed, engine.begin_observed, engine.end_observed, engine.fail_observed, waits
        )

    def _take(self, tools: Sequence[Tool]) -> None:
        if tuple(tools) == self._taken:
            return
        self._taken = tuple(tools)
        for undo in self._undo:
            undo()
        self._undo = []
        if not tools:
            _native.release()
            return
        accelerator = torch.accelerator.current_accelerator()
        devices = {accelerator.type} if accelerator is not None else set()
        devices = {name for tool in tools for name in tool.device_types or devices} - {"cpu", "meta"}
        wanted = [
            (operator, overload)
            for operator, overload, name, func in _operators()
            if any(tool.wants_aten(name, func) for tool in tools)
        ]
        _native.take(wanted, sorted(devices), self._engine.run_taken)
        self._undo = [private.follow_kernels(_native.take_again)]


def _operators() -> Iterable[tuple[str, str, str, Any]]:
    """All operators that the dispatcher has a kernel for: 'aten::add', 'Tensor', 'aten.add.Tensor', the overload."""
    for full in torch._C._dispatch_get_all_op_names():
        operator, _, overload = full.partition(".")
        namespace, _, name = operator.partition("::")
        try:
            func = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        except AttributeError:  # one that TorchScript has for itself
            continue
        yield operator, overload, str(func), func


def sampler(every: int, refresh: int, share: int = 0, shares: int = 1) -> Any:
    """Decides which calls are taken: each signature at its first call and after `refresh` steps, and one in `every` of all calls.
    Of `shares` ranks each begins elsewhere. 0 means never."""
    return _native.Sampler(every, refresh, share, shares)


def call_nodes(tensors: list[torch.Tensor]) -> Any:
    """The autograd nodes of a call with these tensors, which is about to run on this thread."""
    return _native.CallNodes(tensors)


def clocks() -> Any:
    """Clocks of the compiled part, as `op_tools.clocks` describes them."""
    return _native.Clocks()


def leave_thread() -> None:
    """Never observe or profile this thread: it is the tools' own."""
    if _native is not None:
        _native.leave_thread()


def leave_compiler_out(set_eval_frame: Any) -> None:
    """Keep the compiler away from the tools' own work. `set_eval_frame` is torch._dynamo's."""
    if _native is not None:
        _native.set_compiler(set_eval_frame)


def raised_later(error: BaseException) -> tuple[int, type[BaseException]]:
    """The thread that is to raise an error of the device, and a class that makes it: a thread is told a class, not an object."""

    def make(self: BaseException, *_: Any) -> None:
        self.args = error.args

    kind = type(
        type(error).__name__, (type(error),), {"__init__": make, "__module__": type(error).__module__}
    )
    frame: Any = sys._getframe(0).f_back
    # Autograd's own threads run no code of the program.
    thread = threading.get_ident() if frame is not None else threading.main_thread().ident
    return thread or 0, kind
