"""The engine: which tools are on, who wants which function, and the way a call takes through the tools.

What the program calls is seen by a function mode, or at the functions that lists spell out (`named`); what reaches the kernels
comes from the compiled part (`native`), and from a dispatch mode only where that is missing. At most one mode of each kind is
on a thread's stack, whatever the number of tools. What is on is decided under a lock; what a thread is doing lies in that thread.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from op_tools.device_error import DeviceError
from op_tools.engine import backward, native, private
from op_tools.engine.call import WRAPPER, Call, device_types
from op_tools.engine.failures import Failures
from op_tools.engine.modes import UNKNOWN, ApiMode, AtenMode
from op_tools.engine.named import NamedFunctions
from op_tools.engine.patches import Patches
from op_tools.engine.subscriptions import Decisions, Subscription
from op_tools.trees import flat_tensors

if TYPE_CHECKING:
    from op_tools.tool import Tool

Mode = TypeVar("Mode", ApiMode, AtenMode)


class ThreadState(threading.local):
    """What one thread is doing. In autograd's own threads these are the defaults."""

    api_mode: ApiMode | None = None
    aten_mode: AtenMode | None = None
    # The API call under way: its record, or what it takes to make one.
    api_call: Any = None
    quiet = 0


class Engine(Decisions):
    """All of it for one process."""

    def __init__(self) -> None:
        super().__init__()
        self.local = ThreadState()
        self.failures = Failures()
        self.step = 0
        # Runs of backward under way that keep their graph for another one.
        self.graphs_kept = 0
        self._numbers = itertools.count(1)
        self._threads = 0
        self._patches = Patches(self)
        self.native = native.NativeCalls(self)
        self.named = NamedFunctions(self)

    # -- which tools are on --------------------------------------------------------------------------------

    def start(self, tool: Tool) -> None:
        """Turn a tool on: at API level for this thread and for threads started from now on, at ATen level for all."""
        with self.lock:
            if tool not in self.tools:
                self.tools = (*self.tools, tool)
            self.changed()

    def stop(self, tool: Tool) -> None:
        with self.lock:
            self.tools = tuple(other for other in self.tools if other is not tool)
            self.changed()

    def changed(self) -> None:
        """Forget all decisions: the tools, or what they want, have changed."""
        with self.lock:
            self.api_subscriptions.clear()
            self.aten_subscriptions.clear()
            self.sync_thread()
            self.native.sync(self.tools)
            named = [tool.api_functions or () for tool in self.tools if tool.uses_api]
            self.named.sync(() if self.needs_api_mode else itertools.chain.from_iterable(named))

    def sync_thread(self) -> None:
        """Push or remove this thread's modes so that they fit the tools that are on."""
        aten = any(tool.uses_aten for tool in self.tools) and not self.has_native()
        self._want(self.needs_api_mode, aten)

    def has_native(self) -> bool:
        return self.native.available()

    @property
    def needs_api_mode(self) -> bool:
        """Whether a list names more functions than can be led through the engine one by one."""
        return any(tool.uses_api and tool.api_functions is None for tool in self.tools)

    def leave_thread(self) -> None:
        self._want(False, False)

    def _want(self, api: bool, aten: bool) -> None:
        local = self.local
        was_on = local.api_mode is not None or local.aten_mode is not None
        local.api_mode = self._switched(local.api_mode, ApiMode, api)
        local.aten_mode = self._switched(local.aten_mode, AtenMode, aten)
        with self.lock:
            self._threads += (api or aten) - was_on
            # Another thread may still have modes after the last tool has gone; they must not get in its way.
            self._patches.sync(bool(self.tools), self._threads > 0)

    def _switched(self, mode: Mode | None, kind: type[Mode], wanted: bool) -> Mode | None:
        if wanted and mode is None:
            mode = kind(self)
            private.push_mode(mode)
        elif not wanted and mode is not None:
            private.remove_mode(mode)
            mode = None
        return mode

    def one_thread_left(self) -> None:
        """In a forked child: the parent's other threads, and their modes, are not here."""
        self._threads = int(self.local.api_mode is not None or self.local.aten_mode is not None)

    def modes_here(self) -> list[Any]:
        """Our modes on this thread's stacks. Autograd's threads have those of the thread that started backward."""
        modes = (*private.function_modes(), *private.dispatch_modes())
        return [mode for mode in modes if isinstance(mode, (ApiMode, AtenMode))]

    def observes_here(self) -> bool:
        """Whether calls of this thread may be seen."""
        return self.native.observes or self.named.is_on or bool(self.modes_here())

    def next_id(self) -> int:
        """The next forward_id; one count for all tools."""
        return next(self._numbers)

    def decide_observed(self, func: Any) -> Subscription | None:
        """Decide who wants this operator from the observer, which keeps the answer."""
        seen = [tool for tool in self.tools if not tool.executes]
        return private.silently(self.guarded, None, None, self.wanting, func, seen)  # type: ignore[no-any-return]

    # -- the way of a call ---------------------------------------------------------------------------------

    def run_api(self, subscription: Subscription | None, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at API level that somebody may want."""
        if subscription is UNKNOWN:
            subscription = self.guarded(None, None, self.subscribe_api, func)
        local = self.local
        if (
            subscription is None
            or local.quiet
            or local.api_call is not None
            or private.functorch_active() is not None
        ):
            return func(*args, **kwargs)
        if subscription.only_parent:
            return self.run_parent(subscription, func, args, kwargs)
        decline = subscription.decline
        if decline is not None and decline(subscription.name, args, kwargs, self.step):
            local.api_call = subscription.bystander
            return self._unobserved(func, args, kwargs)
        for tool in subscription.skipped:
            tool.say(f"skip {tool.hook_name} on {subscription.name}")
        tensors = flat_tensors(args, kwargs)
        kinds = device_types(tensors)
        tools = [tool for tool in subscription.tools if tool.covers(kinds)]
        if WRAPPER in kinds or private.fake_mode_active() or not (tools or _is_parent(subscription, kinds)):
            return func(*args, **kwargs)
        return self.run_tools(Call(subscription, func, args, kwargs, "api", 0, self.step, tensors), tools)

    def run_parent(self, subscription: Subscription, func: Any, args: Any, kwargs: Any) -> Any:
        """A call that tools only want to know as the parent of ATen calls, forward and backward.

        Most such calls are never asked for: a record is made of one when a tool takes an ATen call in it, or when it
        leaves autograd nodes behind.
        """
        local = self.local
        if local.api_call is not None:
            return func(*args, **kwargs)
        first = private.next_node_number()
        local.api_call = (subscription, func, args, kwargs)
        looks_inside = self.native.looks_inside
        if not looks_inside:
            native.skip()
        try:
            result = func(*args, **kwargs)
            if private.next_node_number() != first:
                private.silently(self.guarded, None, None, self._tie, local.api_call, first, result)
            return result
        finally:
            if not looks_inside:
                native.unskip()
            local.api_call = None

    def _unobserved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call that no tool takes, as the whole that it is: nobody looks inside."""
        native.skip()
        try:
            return func(*args, **kwargs)
        finally:
            native.unskip()
            self.local.api_call = None

    def _parent(self, pending: Any) -> Call | None:
        """The record of the API call under way on this thread; None if it concerns no tool."""
        if type(pending) is not tuple:
            return pending  # type: ignore[no-any-return]
        subscription, func, args, kwargs = pending
        tensors = flat_tensors(args, kwargs)
        if not _is_parent(subscription, device_types(tensors)):
            return None
        call = Call(subscription, func, args, kwargs, "api", self.next_id(), self.step, tensors)
        node = private.current_node()
        if node is not None:
            call.in_backward, call.origin = True, node.metadata.get(backward.KEY)
        return call

    def _tie(self, pending: Any, first: int, result: Any) -> None:
        node = private.current_node()
        if (node is not None and backward.is_compiled(node)) or private.fake_mode_active():
            return
        call = self._parent(pending) if private.functorch_active() is None else None
        if call is not None:
            backward.mark(result, first, call.as_origin)

    def run_tools(self, call: Call, tools: list[Tool]) -> Any:
        """A call at API level through the tools that watch its devices."""
        func, args, kwargs = call.func, call.args, call.kwargs
        local = self.local
        skipped = False
        try:
            track = private.silently(self._begin, call, tools)
            local.api_call = call
            if not (call.decomposed or self.native.looks_inside):
                native.skip()
                skipped = True
            executes = [tool for tool in call.tools if tool.executes]
            result = self._execute(call, executes) if executes else func(*args, **kwargs)
        except BaseException:
            private.silently(self._failed, call)
            raise
        finally:
            local.api_call = None
            if skipped:
                native.unskip()
        if track is not None or call.tools:
            private.silently(self._end, call, track, result)
        return result

    def _begin(self, call: Call, tools: list[Tool]) -> backward.Tracking | backward.Marking | None:
        """Ask the tools, note where gradients will come from, let the tools look. Sets the tools of the call."""
        node = private.current_node()
        if node is not None:
            if backward.is_compiled(node):
                return None
            call.in_backward = True
            call.origin = node.metadata.get(backward.KEY)
        call.tools = tools
        if not call.subscription.takes_all:
            call.tools = [tool for tool in tools if self.guarded(tool, call, tool.applies, call)]
        track = None
        if call.tools or call.subscription.parent_for:
            call.id = self.next_id()
            if call.subscription.ties and torch.is_grad_enabled():
                track = self.guarded(_first(call), call, backward.track, call, self)
        for tool in call.tools:
            self.guarded(tool, call, tool.before, call)
        return track

    def _end(self, call: Call, track: backward.Tracking | backward.Marking | None, result: Any) -> None:
        args = call.args
        if track is not None:
            self.guarded(_first(call), call, track.attach, result, self)
        for tool in reversed(call.tools):
            self.guarded(tool, call, tool.after, call, result)
        if call.hooked and call.args is args:
            call.release()
        elif call.hooked:
            call.tensors()  # of what a tool has put in place of the arguments, not of the arguments

    def _failed(self, call: Call) -> None:
        for tool in call.tools:
            self.guarded(tool, call, tool.failed, call)

    def _execute(self, call: Call, tools: list[Tool]) -> Any:
        if not tools:
            return call.func(*call.args, **call.kwargs)
        return tools[0].execute(call, lambda: self._execute(call, tools[1:]))

    def run_aten(self, subscription: Subscription | None, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at ATen level that somebody may want, from the dispatch mode. Function modes are off."""
        if subscription is UNKNOWN:
            subscription = self.guarded(None, None, self.subscribe_aten, func)
        call = None
        if subscription is not None and not self.local.quiet:
            call = self._aten_call(subscription, func, args, kwargs, observed=False)
        if call is None:
            return func(*args, **kwargs)
        try:
            executes = [tool for tool in call.tools if tool.executes]
            result = self._execute(call, executes) if executes else func(*args, **kwargs)
        except BaseException:
            private.silently(self._failed, call)
            raise
        private.silently(self._end, call, None, result)
        return result

    def run_taken(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at a kernel that was taken for the tools that run calls in their own way."""
        with private.no_function_modes():
            return self.run_aten(self.aten_subscriptions.get(func, UNKNOWN), func, args, kwargs)

    def begin_observed(self, subscription: Subscription, func: Any, args: Any, kwargs: Any) -> Call | None:
        """A call that the observer has seen is about to run; None if no tool takes it."""
        if self.local.quiet:
            return None
        return self._aten_call(subscription, func, args, kwargs, observed=True)

    def end_observed(self, call: Call, result: Any) -> None:
        """A call that the observer has seen has run."""
        private.silently(self._end_observed, call, result)

    def _end_observed(self, call: Call, result: Any) -> None:
        if call.parent is None and call.subscription.ties:
            self.guarded(None, call, backward.mark, result, call.first_node, call.as_origin)
        self._end(call, None, result)

    def fail_observed(self, call: Call) -> None:
        private.silently(self._failed, call)

    def _aten_call(
        self, subscription: Subscription, func: Any, args: Any, kwargs: Any, *, observed: bool
    ) -> Call | None:
        """The record of a call at ATen level, shown to the tools that take it; None if none does."""
        local = self.local
        api_call = local.api_call
        if (
            api_call is not None
            and not subscription.views_whole
            and (type(api_call) is tuple or not api_call.decomposed)
        ):
            return None
        node = private.current_node()
        origin = node.metadata.get(backward.KEY) if node is not None else None
        if not subscription.by_own_name and api_call is None and origin is None:
            return None
        if private.fake_mode_active() or (not observed and node is not None and backward.is_compiled(node)):
            return None
        tensors = flat_tensors(args, kwargs)
        kinds = device_types(tensors)
        tools = [tool for tool in subscription.tools if tool.covers(kinds)]
        if not tools:
            return None
        if type(api_call) is tuple:
            api_call = self.guarded(None, None, self._parent, api_call)
            if api_call is not None:
                local.api_call = api_call  # of all ATen calls in it
        call = Call(subscription, func, args, kwargs, "aten", 0, self.step, tensors)
        call.parent, call.in_backward, call.origin = api_call, node is not None, origin
        call.observed, call.first_node = observed, private.next_node_number()
        if origin is None and node is not None:
            call.node = node.name()
        try:
            private.silently(self._begin_aten, call, tools)
        except BaseException:
            private.silently(self._failed, call)
            raise
        return call if call.tools else None

    def _begin_aten(self, call: Call, tools: list[Tool]) -> None:
        call.tools = [tool for tool in tools if self.guarded(tool, call, tool.applies, call)]
        if call.tools:
            whole = call.parent.id if call.parent is not None else 0
            call.id = whole or (call.origin.call_id if call.origin is not None else self.next_id())
        for tool in call.tools:
            self.guarded(tool, call, tool.before, call)

    def quietly(self, function: Any, *args: Any) -> Any:
        """Run a part of the engine that calls torch: seen by nobody, and not by the tools either."""
        self.local.quiet += 1
        native.hide()
        try:
            return private.silently(function, *args)
        finally:
            native.show()
            self.local.quiet -= 1

    def guarded(self, tool: Tool | None, call: Call | None, function: Any, *args: Any) -> Any:
        """Run a part of a tool. Its errors become one row of its report; the device's own go to the user."""
        local = self.local
        local.quiet += 1
        native.hide()
        try:
            return function(*args)
        except DeviceError as error:
            raise error.original from None
        except Exception as error:
            self.failures.report(tool, call, error)
            return None
        finally:
            native.show()
            local.quiet -= 1


def _is_parent(subscription: Subscription, kinds: set[str]) -> bool:
    """Whether some tool is to know calls on these devices as the parents of ATen calls."""
    return WRAPPER not in kinds and any(tool.covers(kinds) for tool in subscription.parent_for)


def _first(call: Call) -> Tool | None:
    return call.tools[0] if call.tools else None


ENGINE = Engine()


def _after_fork() -> None:
    # The forking thread is the child's only one; the parent's other threads may have held the lock.
    ENGINE.lock = threading.RLock()
    ENGINE.one_thread_left()
    ENGINE.failures.after_fork()
    for tool in ENGINE.tools:
        tool.after_fork()


os.register_at_fork(after_in_child=_after_fork)
