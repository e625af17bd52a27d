"""What the engine changes in the process while a tool is on, and takes back when the last one goes.

Threads started by the program get the modes; backward gets the function mode again; a compiled callable is one call;
collectives of torch.distributed are operators; an optimizer's step advances the step count; an autograd function of
the program is tied to the line that applied it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from op_tools.engine import backward, collectives, compiled, native, private
from op_tools.engine.modes import ApiMode

if TYPE_CHECKING:
    from op_tools.engine.core import Engine


class _Group:
    """Changes that come and go together."""

    def __init__(self, engine: Engine, *installs: Callable[[], Callable[[], None]]) -> None:
        self._engine, self._installs = engine, installs
        self._undo: list[Callable[[], None]] = []

    def sync(self, wanted: bool) -> None:
        """Install or undo all of them."""
        if wanted and not self._undo:
            for install in self._installs:
                try:
                    self._undo.append(install())
                except Exception as error:  # a torch that has moved things: the tools do without this one
                    self._engine.failures.report(None, None, error)
        elif not wanted and self._undo:
            for undo in reversed(self._undo):
                undo()
            self._undo = []


class Patches:
    """Installed with the first tool, undone with the last; what keeps modes out of the compiler's way, with the last mode."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._for_modes = _Group(
            engine,
            lambda: compiled.install(engine),
            lambda: private.hide_mode_from_modules(lambda mode: isinstance(mode, ApiMode)),
        )
        self._for_tools = _Group(
            engine,
            self._threads,
            lambda: private.patch_backward(self._backward),
            lambda: private.patch_custom_functions(self._custom_functions),
            self._steps,
            lambda: collectives.install(engine),
        )

    def sync(self, tools: bool, modes: bool) -> None:
        """Fit them to whether there are tools, and whether some thread has modes. A thread may outlive the tools by hours."""
        self._for_tools.sync(tools)
        self._for_modes.sync(tools or modes)

    def _threads(self) -> Callable[[], None]:
        original = threading.Thread.start
        engine = self.engine

        @functools.wraps(original)
        def start(thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
            if native.is_quiet():  # a thread of the tools themselves
                return original(thread, *args, **kwargs)
            body = thread.run

            def run() -> None:
                vars(thread).pop("run", None)
                engine.sync_thread()
                try:
                    body()
                finally:
                    engine.leave_thread()

            thread.run = run  # type: ignore[method-assign]
            return original(thread, *args, **kwargs)

        return private.replace(threading.Thread, "start", start)

    def _custom_functions(self, original: Callable[..., Any]) -> Callable[..., Any]:
        engine = self.engine

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            ties = any(tool.wants_ties or tool.wants_backward for tool in engine.tools)
            if (
                not ties
                or native.is_quiet()
                or engine.local.api_call is not None
                or not engine.observes_here()
            ):
                return original(cls, *args, **kwargs)
            first = private.next_node_number()
            result = original(cls, *args, **kwargs)
            engine.guarded(None, None, private.silently, backward.mark_function, engine, cls, first, result)
            return result

        return apply

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        engine = self.engine
        push, remove = private.stack_of(ApiMode)

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            mode = engine.local.api_mode
            pushes = mode is not None and mode not in private.function_modes()
            this_run = object()
            try:
                if private.keeps_graph(args, kwargs):
                    engine.graphs_kept.add(this_run)
                if not pushes:
                    return original(*args, **kwargs)
                try:
                    push(mode)
                    return original(*args, **kwargs)
                finally:
                    remove(mode)
            finally:
                engine.graphs_kept.discard(this_run)

        return run

    def _steps(self) -> Callable[[], None]:
        engine = self.engine

        def count(*_: Any) -> None:
            engine.guarded(None, None, engine.mend_thread)
            engine.step += 1
            for tool in engine.tools:
                engine.guarded(tool, None, tool.stepped, engine.step)

        handle = register_optimizer_step_post_hook(count)
        return handle.remove
