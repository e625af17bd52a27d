"""The compiled part, `op_tools._native`: calls that reach the kernels, observed without a mode and on every thread, or taken at
the device's own kernels by a tool that runs them in its own way.

A pure Python installation, or one for another torch, does not have it: then a dispatch mode does both, and autograd runs
other kernels while it is on. That is said once.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dicore import observers
from op_tools.engine import private
from op_tools.names import operator_name
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


class _Counted(threading.local):
    """A scope for `with`, counted on each thread."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def is_on() -> bool:
    """Whether the compiled part is there and not switched off."""
    return _native is not None and bool(NATIVE.get_or_default())


# The tools at work: what they call is neither observed, nor taken, nor led, nor seen by a profiler of the program.
in_tool: Any = _Counted() if _native is None else _native.in_tool
# A call in which nobody looks inside.
as_a_whole: Any = _Counted() if _native is None else _native.as_a_whole
# One of which tools may take what is inside.
looked_into: Any = _Counted() if _native is None else _native.looked_into
# Functions are as they were on this thread.
not_led: Any = _Counted() if _native is None else _native.not_led
# Whether this thread is in a tool.
is_quiet: Callable[[], bool] = (lambda: in_tool.depth > 0) if _native is None else _native.is_quiet

# The call site of the program that the stack shows; None without the compiled part.
read_site: Callable[[], Any] | None = None if _native is None else _native.read_site

# Rows as lines of a CSV file; None without it.
csv_lines: Callable[[list[Any], tuple[str, ...]], bytes] | None = (
    None if _native is None else _native.csv_lines
)
# So many operators are observed at their kernels, where they cost other calls nothing; more by record functions.
_FEW = 100

if _native is not None:
    # Threads that live on are not to enter an interpreter that ends.
    atexit.register(_native.close_entrance)


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
        # Whether only the operators that lists name are observed. What is inside API calls, and inside their backward, is
        # observed too from the first API call on that a tool takes.
        self.sleeps = False
        self._awake = False
        self._observing: tuple[Any, ...] = ()
        self._taken: tuple[Any, ...] = ()
        self._undo: list[Callable[[], None]] = []
        # Tools that want to see nothing for a while, and whether that is all of them.
        self._resting: set[Tool] = set()
        self._rests = False

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
        self._observing = tuple(tool for tool in concerned if not tool.executes)
        self._awake &= bool(self._observing)
        self._take(tuple(tool for tool in concerned if tool.executes))
        self._observe()

    def wake(self) -> None:
        """A tool has taken a call at API level: it may look inside, and at its backward."""
        with self._engine.lock:
            self._awake = True
            self._observe()

    def rest(self, tool: Tool, resting: bool) -> None:
        """A tool wants to see no calls for a while, or to see them again. Where no tool does, they cost nothing."""
        with self._engine.lock:
            (self._resting.add if resting else self._resting.discard)(tool)
            self._rest()

    def _rest(self) -> None:
        rests = bool(self._observing) and self._resting.issuperset(self._observing)
        if rests != self._rests:
            self._rests = rests
            _native.rest(rests)

    def _observe(self) -> None:
        if self._rests:
            self._rests = False
            _native.rest(False)
        self._observe_anew()
        self._rest()

    def _observe_anew(self) -> None:
        tools = self._observing
        self.observes = bool(tools)
        self.looks_inside = any(tool.aten_everywhere for tool in tools)
        self.sleeps = False
        if not tools:
            _native.stop_observing()
            return
        named = {name for tool in tools for name in tool.device_types or ()}
        _native.observe_devices(sorted(named), any(tool.device_types is None for tool in tools))
        few = None if self._awake else _few(tools)
        self.sleeps = few is not None
        engine = self._engine
        _native.observe(
            engine.decide_observed, engine.begin_observed, engine.end_observed, engine.fail_observed,
            engine.complain, few,
        )  # fmt: skip
        self._follow(bool(few or self._taken))

    def _take(self, tools: tuple[Tool, ...]) -> None:
        if tools == self._taken:
            return
        _native.stop_observing()  # what stands in front of the kernels that are taken goes first
        self._taken = tools
        if not tools:
            _native.release()
            self._follow(False)
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
        self._follow(True)

    def _follow(self, wanted: bool) -> None:
        """Stay in front of the kernels where libraries of Python change them."""
        if wanted and not self._undo:
            self._undo = [private.follow_kernels(_native.kernels_changed)]
        elif not wanted:
            for undo in self._undo:
                undo()
            self._undo = []


def _few(tools: Iterable[Tool]) -> list[tuple[str, str]] | None:
    """The operators that tools want for their own names, as the dispatcher knows them; None if they are many."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        operator, _, overload = full.partition(".")
        name = operator_name(operator, overload)
        if any(tool.names_kernel(name) for tool in tools):
            found.append((operator, overload))
            if len(found) > _FEW:
                return None
    return found


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


def queued_copies(timed: bool = False) -> Any:
    """Copies of the tensors of calls in memory of the host, on their way from the devices; `timed`: how long that takes."""
    return _native.QueuedCopies(timed)


def extent(tensors: list[torch.Tensor]) -> tuple[int, list[torch.device], bool]:
    """The bytes of tensors, each counted once, the accelerators among their devices, and whether some are on the host."""
    return _native.extent(tensors)  # type: ignore[no-any-return]


def seconds_seeing() -> float:
    """What seeing calls go by has taken so far, of all threads: what no tool can time."""
    return float(_native.seconds_seeing()) if _native is not None else 0.0


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


# -- functions led through a mode --------------------------------------------------------------------------


def can_lead(c_functions: Sequence[Any]) -> bool:
    """Whether these functions of C can be led through a mode, one by one."""
    return (
        _native is not None
        and len(c_functions) <= _native.most_methods
        and all(map(_native.can_be_led, c_functions))
    )


def lead_c_functions(mode: Any, functions: Iterable[Any]) -> None:
    """Lead these functions through a mode."""
    _native.lead_to(mode)
    _native.lead_c_functions(functions)


def release_c_functions() -> None:
    """Lead no function of C any more."""
    if _native is not None:
        _native.release_c_functions()


def led(function: Any) -> Any:
    """Calls a function under the mode."""
    return _native.Led(function)


# -- errors of the program, met in a callback that no exception can leave ------------------------------------

# By thread: what will be raised there.
_on_their_way: dict[int, BaseException] = {}


def is_on_its_way(error: BaseException) -> bool:
    """Whether an error that has come up here was to be raised in the program."""
    return _on_their_way.get(threading.get_ident()) is error


def raised_later(error: BaseException) -> tuple[int, type[BaseException]]:
    """The thread that is to raise an error of the program, and what makes it there; no thread where autograd will raise it."""
    if sys._getframe(0).f_back is not None:
        thread = threading.get_ident()
    elif private.graph_task() >= 0:
        # Autograd's own threads run no code of the program: who has called backward gets it.
        private.at_end_of_run(lambda: _raise(error))
        return 0, BaseException
    else:
        thread = threading.main_thread().ident or 0

    def the_error(cls: type[BaseException], *_: Any) -> BaseException:
        _on_their_way.pop(thread, None) if _on_their_way.get(thread) is error else None
        return error

    _on_their_way[thread] = error
    # A thread is told a class; what that makes is the error itself.
    return thread, type(type(error).__name__, (BaseException,), {"__new__": the_error})


def _raise(error: BaseException) -> None:
    raise error
