"""The way of a call through the tools: at API level from a function mode, at ATen level from the observer, from a dispatch mode,
or from a kernel that was taken.

A signal's handler may raise at any step of Python on the main thread. What a thread is doing is noted where that cannot come in
between: by scopes of C, and by assignments in front of a `try`.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import torch

from op_tools.device_error import DeviceError
from op_tools.engine import backward, native, private
from op_tools.engine.call import WRAPPER, Call, device_types
from op_tools.engine.failures import Failures, is_of_a_signal_handler
from op_tools.engine.modes import UNKNOWN
from op_tools.engine.subscriptions import Decisions, Subscription
from op_tools.trees import flat_tensors

if TYPE_CHECKING:
    from op_tools.engine.modes import ApiMode, AtenMode
    from op_tools.tool import Tool


class ThreadState(threading.local):
    """What one thread is doing. In autograd's own threads these are the defaults."""

    api_mode: ApiMode | None = None
    aten_mode: AtenMode | None = None
    # The API call under way: its record, or what it takes to make one.
    api_call: Any = None
    # The program's own error on its way out of the tools.
    leaving: BaseException | None = None
    # The run of a compiled callable under way.
    compiled_run: Any = None


class Calls(Decisions):
    """What happens to calls, by what was decided about their functions."""

    def __init__(self) -> None:
        super().__init__()
        self.local = ThreadState()
        self.failures = Failures()
        self.step = 0
        # Runs of backward under way that keep their graph for another one.
        self.graphs_kept: set[object] = set()
        self._numbers = itertools.count(1)
        # Whether some tool looks inside the calls at API level.
        self.looks_inside = False

    def next_id(self) -> int:
        """The next forward_id; one count for all tools."""
        return next(self._numbers)

    # -- the tools at work ---------------------------------------------------------------------------------

    def quietly(self, function: Any, *args: Any) -> Any:
        """Run a part of the engine that calls torch: seen by nobody, and not by the tools either."""
        with native.in_tool:
            return private.silently(function, *args)

    def guarded(self, tool: Tool | None, call: Call | None, function: Any, *args: Any) -> Any:
        """Run a part of a tool. Its errors become one row of its report; the device's own, and what a signal's handler
        raises, go to the program."""
        try:
            with native.in_tool:
                return function(*args)
        except DeviceError as error:
            self._lets_out(error.original)
            raise error.original from None
        except Exception as error:
            self.note(tool, call, error)
            return None

    def note(self, tool: Tool | None, call: Call | None, error: Exception) -> None:
        """Report an error of a tool; raise it if it is the program's."""
        if error is self.local.leaving or native.is_on_its_way(error) or is_of_a_signal_handler(error):
            self._lets_out(error)
            raise error
        with native.in_tool:
            self.failures.report(tool, call, error)

    def _lets_out(self, error: BaseException) -> None:
        # Tools may be inside each other: the outer one is not to take it for its own.
        self.local.leaving = error if native.is_quiet() else None

    def wake_for(self, subscription: Subscription) -> None:
        """A tool takes a call at API level, and may look inside."""

    # -- API level -----------------------------------------------------------------------------------------

    def run_api(self, subscription: Subscription | None, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at API level that somebody may want."""
        if subscription is UNKNOWN:
            subscription = self.guarded(None, None, self.subscribe_api, func)
        local = self.local
        if (
            subscription is None
            or local.api_call is not None
            or native.is_quiet()
            or private.functorch_active() is not None
        ):
            return func(*args, **kwargs)
        if subscription.only_parent:
            return self.run_parent(subscription, func, args, kwargs)
        try:
            decline = subscription.decline
            declines = decline is not None and decline(subscription.name, args, kwargs, self.step)
            call, tools = (None, []) if declines else self._taken(subscription, func, args, kwargs)
        except Exception as error:
            self.note(None, None, error)
            return func(*args, **kwargs)
        if declines:
            return self._run_whole(subscription.bystander, func, args, kwargs)
        return func(*args, **kwargs) if call is None else self.run_tools(call, tools)

    def _taken(
        self, subscription: Subscription, func: Any, args: Any, kwargs: Any
    ) -> tuple[Call | None, list[Tool]]:
        """The record of a call, and the tools that watch its devices; None if nobody is concerned."""
        for tool in subscription.skipped:
            tool.say(f"skip {tool.hook_name} on {subscription.name}")
        tensors = flat_tensors(args, kwargs)
        kinds = device_types(tensors)
        tools = [tool for tool in subscription.tools if tool.covers(kinds)]
        if WRAPPER in kinds or private.fake_mode_active() or not (tools or _is_parent(subscription, kinds)):
            return None, []
        return Call(subscription, func, args, kwargs, "api", 0, self.step, tensors), tools

    def _run_whole(self, stands_for_it: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call as the whole that it is: nobody looks inside."""
        self.local.api_call = stands_for_it
        try:
            with native.as_a_whole:
                return func(*args, **kwargs)
        finally:
            self.local.api_call = None

    def run_parent(self, subscription: Subscription, func: Any, args: Any, kwargs: Any) -> Any:
        """A call that tools only want to know as the parent of ATen calls, forward and backward.

        Most such calls are never asked for: a record is made of one when a tool takes an ATen call in it, or when it
        leaves autograd nodes behind.
        """
        local = self.local
        if local.api_call is not None:
            return func(*args, **kwargs)
        self.wake_for(subscription)
        first = private.next_node_number()
        local.api_call = (subscription, func, args, kwargs)
        try:
            with native.looked_into if self.looks_inside else native.as_a_whole:
                result = func(*args, **kwargs)
            if private.next_node_number() != first:
                private.silently(self.guarded, None, None, self._tie, local.api_call, first, result)
            return result
        finally:
            local.api_call = None

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
        self.wake_for(call.subscription)
        try:
            track = private.silently(self._begin, call, tools)
            local.api_call = call
            with native.looked_into if call.decomposed or self.looks_inside else native.as_a_whole:
                result = self._run(call, func, args, kwargs)
        except BaseException:
            local.api_call = None
            private.silently(self._failed, call)
            raise
        finally:
            local.api_call = None
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

    def _run(self, call: Call, func: Any, args: Any, kwargs: Any) -> Any:
        executes = [tool for tool in call.tools if tool.executes]
        return self._execute(call, executes) if executes else func(*args, **kwargs)

    def _execute(self, call: Call, tools: list[Tool]) -> Any:
        if not tools:
            return call.func(*call.args, **call.kwargs)
        return tools[0].execute(call, lambda: self._execute(call, tools[1:]))

    # -- ATen level ----------------------------------------------------------------------------------------

    def run_aten(self, subscription: Subscription | None, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at ATen level that somebody may want, from the dispatch mode. Function modes are off."""
        if subscription is UNKNOWN:
            subscription = self.guarded(None, None, self.subscribe_aten, func)
        call = None
        if subscription is not None and not native.is_quiet():
            call = self.guarded(None, None, self._aten_call, subscription, func, args, kwargs, False)
        if call is None:
            return func(*args, **kwargs)
        try:
            result = self._run(call, func, args, kwargs)
        except BaseException:
            private.silently(self._failed, call)
            raise
        private.silently(self._end, call, None, result)
        return result

    def run_taken(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call at a kernel that was taken for the tools that run calls in their own way."""
        with private.no_function_modes():
            return self.run_aten(self.aten_subscriptions.get(func, UNKNOWN), func, args, kwargs)

    def decide_observed(self, func: Any) -> Subscription | None:
        """Decide who wants this operator from the observer, which keeps the answer."""
        seen = [tool for tool in self.tools if not tool.executes]
        return private.silently(self.guarded, None, None, self.wanting, func, seen)  # type: ignore[no-any-return]

    def begin_observed(self, subscription: Subscription, func: Any, args: Any, kwargs: Any) -> Call | None:
        """A call that the observer has seen is about to run; None if no tool takes it."""
        return self.guarded(None, None, self._aten_call, subscription, func, args, kwargs, True)  # type: ignore[no-any-return]

    def end_observed(self, call: Call, result: Any) -> None:
        """A call that the observer has seen has run."""
        private.silently(self._end_observed, call, result)

    def _end_observed(self, call: Call, result: Any) -> None:
        if call.parent is None and call.subscription.ties:
            self.guarded(None, call, backward.mark, result, call.first_node, call.as_origin)
        self._end(call, None, result)

    def fail_observed(self, call: Call) -> None:
        """A call that the observer has seen has raised."""
        private.silently(self._failed, call)

    def complain(self, name: str, trouble: str) -> None:
        """A call of an operator could not be shown to the tools."""
        self.failures.report(None, None, RuntimeError(f"{name}: {trouble}"))

    def _aten_call(
        self, subscription: Subscription, func: Any, args: Any, kwargs: Any, observed: bool
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


def _is_parent(subscription: Subscription, kinds: set[str]) -> bool:
    """Whether some tool is to know calls on these devices as the parents of ATen calls."""
    return WRAPPER not in kinds and any(tool.covers(kinds) for tool in subscription.parent_for)


def _first(call: Call) -> Tool | None:
    return call.tools[0] if call.tools else None
