"""torch.compile under the tools: a compiled callable is one call, and the compiler sees no mode of ours.

With a function mode on the stack Dynamo breaks graphs or gives up. So the modes leave the stack while a compiled
callable runs. Callables compiled before a tool was started count too: they all announce themselves to the same
two functions of torch._dynamo, at entry and at exit, and those are what is watched. torch._dynamo itself takes a
second to import; it is prepared when the program imports it, not before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import weakref
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from op_tools.engine import backward, collectives, native, private
from op_tools.engine.call import Call, device_types
from op_tools.engine.modes import UNKNOWN, ApiMode

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

_MODULE = "torch._dynamo.eval_frame"
_WRAPPER = "compile_wrapper"
# How the name of a compiled callable begins.
COMPILED = "torch.compile."


class CompiledRun:
    """One run of a compiled callable on one thread."""

    def __init__(self, engine: Engine, frame: FrameType) -> None:
        self.engine = engine
        self.frame = frame
        self.call: Call | None = None
        self.track: backward.Tracking | backward.Marking | None = None
        self.modes = engine.modes_here()
        self.error = sys.exc_info()[1]
        self.undo: list[Callable[[], None]] = []
        local = engine.local
        # In autograd's threads the modes are those of the thread that started backward.
        self.own_thread = local.api_mode in self.modes or local.aten_mode in self.modes

    def is_over(self, callback: Any) -> bool:
        """Whether the wrapper puts back the callback that was there before it."""
        values = self.frame.f_locals
        return callback is values.get("prior") and (not callable(callback) or "call_succeeded" in values)

    def enter(self) -> None:
        """Announce the call to the tools and take the modes off."""
        engine = self.engine
        if not native.is_quiet() and any(isinstance(mode, ApiMode) for mode in self.modes):
            private.silently(engine.guarded, None, None, self._announce)
        self.undo.append(self._put_modes_back)
        for mode in self.modes:
            private.remove_mode(mode)
        for hide, show in (
            (lambda: collectives.leave_alone(True), lambda: collectives.leave_alone(False)),
            (native.not_led.__enter__, lambda: native.not_led.__exit__(None, None, None)),
            (engine.named.enter_compiled, engine.named.leave_compiled),
        ):
            hide()
            self.undo.append(show)

    def _announce(self) -> None:
        engine, values = self.engine, self.frame.f_locals
        function = values.get("fn")
        owner = getattr(function, "__self__", None)
        module = owner if isinstance(owner, torch.nn.Module) else None
        named = type(module) if module is not None else function
        name = f"{COMPILED}{getattr(named, '__qualname__', type(named).__name__)}"
        key = (_MODULE, name)
        subscription = engine.api_subscriptions.get(key, UNKNOWN)
        if subscription is UNKNOWN:
            subscription = engine.subscribe_api(key, name)
        args, kwargs = values.get("args", ()), values.get("kwargs", {})
        if subscription is None or (
            (node := private.current_node()) is not None and backward.is_compiled(node)
        ):
            return
        call = Call(subscription, function, args, kwargs, "compiled", 0, engine.step)
        kinds = device_types(call.tensors())
        if module is not None:
            kinds |= {parameter.device.type for parameter in module.parameters()}
        call.tools = [
            tool
            for tool in subscription.tools
            if tool.takes_compiled and tool.covers(kinds) and engine.guarded(tool, call, tool.applies, call)
        ]
        if not call.tools:
            return
        call.id = engine.next_id()
        self.call = call
        if subscription.ties and torch.is_grad_enabled():
            self.track = engine.guarded(call.tools[0], call, backward.track, call, engine)
        for tool in call.tools:
            engine.guarded(tool, call, tool.before, call)

    def leave(self) -> None:
        """Put everything back and tell the tools how it ended."""
        while self.undo:
            self.undo.pop()()
        if self.call is not None:
            self.engine.quietly(self._conclude, self.call)

    def _put_modes_back(self) -> None:
        local = self.engine.local
        if self.own_thread:
            # Tools may have come and gone meanwhile. The wrapper has also reset the keys that a mode turns on.
            self.modes = [mode for mode in (local.api_mode, local.aten_mode) if mode is not None]
        for mode in self.modes:
            private.remove_mode(mode)
            private.push_mode(mode)

    def _conclude(self, call: Call) -> None:
        values = self.frame.f_locals
        if "result" in values and values.get("call_succeeded", True):
            self.engine._end(call, self.track, values["result"])
        elif "result" not in self.frame.f_code.co_varnames and sys.exc_info()[1] is None:
            # Before torch 2.12 the wrapper keeps its result to itself: the call is told without it.
            self.engine._end(call, None, None)
        else:
            self.engine._failed(call)


def _patch(module: ModuleType, engine: Engine) -> tuple[Callable[[], None], ...]:
    """Be told when a compiled callable begins and ends; the result undoes it."""
    enter = getattr(module, "set_eval_frame", None)
    leave = getattr(module, "_maybe_set_eval_frame", None)
    if enter is None or leave is None:
        return ()
    native.leave_compiler_out(enter)

    def entering(callback: Any) -> Any:
        # The wrapper's first act, before it notes the dispatch keys that modes turn on: it restores them later.
        frame = sys._getframe(1)
        if (
            frame.f_code.co_name == _WRAPPER
            and engine.local.compiled_run is None
            and "prior" not in frame.f_locals
            and getattr(getattr(module, "_stance", None), "stance", "") != "force_eager"
            and (engine.modes_here() or engine.named.is_on)
        ):
            engine.local.compiled_run = run = CompiledRun(engine, frame)
            try:
                run.enter()
            except BaseException:  # a signal's handler has raised
                engine.local.compiled_run = None
                run.leave()
                raise
        return enter(callback)

    def leaving(callback: Any) -> Any:
        frame = sys._getframe(1)
        run = engine.local.compiled_run
        # It is called at the start too, with the callback to set; at the end with the one there was before.
        if run is None or run.frame is not frame or not run.is_over(callback):
            return leave(callback)
        engine.local.compiled_run = None
        result = leave(callback)
        run.leave()
        return result

    # The wrapper calls these while frames are being compiled, and what a tool remembers of a tensor may be dropped then:
    # they are not to be among the frames.
    for function in (entering, leaving, weakref.WeakKeyDictionary()._remove):  # type: ignore[attr-defined, var-annotated]
        module.skip_code(function.__code__)  # type: ignore[attr-defined]
    return (
        private.replace(module, "set_eval_frame", entering),
        private.replace(module, "_maybe_set_eval_frame", leaving),
    )


class _WhenImported(importlib.abc.MetaPathFinder):
    """Runs a function on the module of torch._dynamo that matters, when the program imports it."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self.then = then
        self.busy = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(engine: Engine) -> Callable[[], None]:
    """Watch compiled callables; the result undoes it."""
    undos: list[Callable[[], None]] = []
    finder = _WhenImported(lambda loaded: undos.extend(_patch(loaded, engine)))
    module = sys.modules.get(_MODULE)
    if module is not None:
        finder.then(module)
    else:
        sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for step in undos:
            step()

    return undo
