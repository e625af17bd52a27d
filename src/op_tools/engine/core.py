"""The engine: which tools are on, and what is put in place for them.

What the program calls is seen by a function mode, or at the functions that lists spell out (`named`); what reaches the kernels
comes from the compiled part (`native`), and from a dispatch mode only where that is missing. At most one mode of each kind is
on a thread's stack, whatever the number of tools. What is on is decided under a lock; what a thread is doing lies in that thread.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from op_tools.engine import native, private
from op_tools.engine.calls import Calls
from op_tools.engine.modes import ApiMode, AtenMode
from op_tools.engine.named import NamedFunctions
from op_tools.engine.patches import Patches

if TYPE_CHECKING:
    from op_tools.engine.subscriptions import Subscription
    from op_tools.tool import Tool


class Engine(Calls):
    """All of it for one process."""

    def __init__(self) -> None:
        super().__init__()
        # On all threads; those of a thread that has ended go with it.
        self._modes: weakref.WeakSet[ApiMode | AtenMode] = weakref.WeakSet()
        self._patches = Patches(self)
        self.native = native.NativeCalls(self)
        self.named = NamedFunctions(self)

    def start(self, tool: Tool) -> None:
        """Turn a tool on: at API level for this thread and for threads started from now on, at ATen level for all."""
        with self.lock:
            if tool not in self.tools:
                self.tools = (*self.tools, tool)
                self.guarded(tool, None, tool.switched, True)
            try:
                self.changed()
            except BaseException:
                self.stop(tool)
                raise

    def stop(self, tool: Tool) -> None:
        """Turn a tool off."""
        with self.lock:
            if tool in self.tools:
                self.guarded(tool, None, tool.switched, False)
            self.tools = tuple(other for other in self.tools if other is not tool)
            self.changed()

    def changed(self) -> None:
        """Forget all decisions: the tools, or what they want, have changed."""
        with self.lock:
            self.api_subscriptions.clear()
            self.aten_subscriptions.clear()
            self.sync_thread()
            self.native.sync(self.tools)
            self.looks_inside = self.native.looks_inside
            named = [tool.api_functions or () for tool in self.tools if tool.uses_api]
            self.named.sync(() if self.needs_api_mode else itertools.chain.from_iterable(named))

    def sync_thread(self) -> None:
        """Push or remove this thread's modes so that they fit the tools that are on."""
        aten = any(tool.uses_aten for tool in self.tools) and not self.has_native()
        self._want(self.needs_api_mode, aten)

    def has_native(self) -> bool:
        return self.native.available()

    def wake_for(self, subscription: Subscription) -> None:
        if self.native.sleeps and subscription.wakes:
            self.native.wake()

    @property
    def needs_api_mode(self) -> bool:
        """Whether a list names more functions than can be led through the engine one by one."""
        return any(tool.uses_api and tool.api_functions is None for tool in self.tools)

    def leave_thread(self) -> None:
        self._want(False, False)

    def _want(self, api: bool, aten: bool) -> None:
        with self.lock:
            self._switch("api_mode", ApiMode, api)
            self._switch("aten_mode", AtenMode, aten)
            # Another thread may still have modes after the last tool has gone; they must not get in its way.
            self._patches.sync(bool(self.tools), bool(self._modes))

    def _switch(self, name: str, kind: type[ApiMode | AtenMode], wanted: bool) -> None:
        mode = getattr(self.local, name)
        push, remove = private.stack_of(kind)
        if wanted and mode is None:
            mode = kind(self)
            self._modes.add(mode)
            setattr(self.local, name, mode)
            push(mode)
        elif not wanted and mode is not None:
            try:
                remove(mode)
            finally:
                setattr(self.local, name, None)
                self._modes.discard(mode)

    def mend_thread(self) -> None:
        """Put this thread's modes right, where the program calls nothing of torch. What a signal's handler raises while torch
        has taken a mode off for a moment may lose it, or bring it back later."""
        local = self.local
        wanted = [mode for mode in (local.api_mode, local.aten_mode) if mode is not None]
        found = self.modes_here()
        if found == wanted or local.compiled_run is not None:
            return
        for mode in found:
            private.remove_mode(mode)
        for mode in wanted:
            private.push_mode(mode)

    def one_thread_left(self) -> None:
        """In a forked child: the parent's other threads, and their modes, are not here."""
        here = (self.local.api_mode, self.local.aten_mode)
        self._modes = weakref.WeakSet(mode for mode in here if mode is not None)

    def modes_here(self) -> list[Any]:
        """Our modes on this thread's stacks. Autograd's threads have those of the thread that started backward."""
        modes = (*private.function_modes(), *private.dispatch_modes())
        return [mode for mode in modes if isinstance(mode, (ApiMode, AtenMode))]

    def observes_here(self) -> bool:
        """Whether calls of this thread may be seen."""
        return self.native.observes or self.named.is_on or bool(self.modes_here())


ENGINE = Engine()


def _after_fork() -> None:
    # The forking thread is the child's only one; the parent's other threads may have held the lock.
    ENGINE.lock = threading.RLock()
    ENGINE.one_thread_left()
    ENGINE.failures.after_fork()
    for tool in ENGINE.tools:
        tool.after_fork()


os.register_at_fork(after_in_child=_after_fork)
