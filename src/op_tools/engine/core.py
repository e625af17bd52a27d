"""The engine: which tools are on, who wants which function, and the way a call takes through the tools.

At most one mode of each kind is on a thread's stack, whatever the number of tools. What is on is decided under a
lock; what a thread is doing lies in that thread.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from op_tools.categories import names_in
from op_tools.device_error import DeviceError
from op_tools.engine import backward, private
from op_tools.engine.call import WRAPPER, Call, device_types
from op_tools.engine.failures import Failures
from op_tools.engine.modes import UNKNOWN, ApiMode, AtenMode
from op_tools.engine.patches import Patches
from op_tools.names import name_of
from op_tools.trees import flat_tensors

if TYPE_CHECKING:
    from op_tools.tool import Tool

    Tools = tuple[Tool, ...]

Mode = TypeVar("Mode", ApiMode, AtenMode)
# Questions and containers, not operators: nothing is computed in them, or what is computed is seen inside.
NEVER = frozenset(
    {
        "torch.Tensor.data_ptr", "torch.Tensor.backward", "torch.Tensor.has_names", "torch.Tensor.numel",
        "torch.Tensor.size", "torch.Tensor.__repr__", "torch.Tensor.__format__", "torch.Tensor.type",
        "torch.Tensor.dim", "torch.Tensor.requires_grad_", "torch.autograd.backward", "torch.autograd.grad",
        "torch.Tensor.register_hook", "torch.Tensor.stride", "torch.Tensor.storage_offset",
        "torch.Tensor.untyped_storage", "torch.Tensor.is_contiguous", "torch.Tensor.retain_grad",
        "torch.Tensor.element_size", "torch.Tensor.get_device", "torch.Tensor.__hash__", "torch.is_tensor",
        "torch.is_floating_point", "torch.Tensor.is_floating_point", "torch.Tensor.__deepcopy__",
        "torch.Tensor.__reduce_ex__", "torch.autograd.function.once_differentiable", "torch.typename",
        "torch.Tensor.is_set_to", "torch.Tensor.is_shared", "torch.Tensor.record_stream",
        "torch._has_compatible_shallow_copy_type",
    }
)  # fmt: skip
# Only ever bookkeeping at ATen level.
NEVER_ATEN = names_in(
    "aten.detach.default aten.alias.default aten.is_pinned.default aten.record_stream.default"
)


class ThreadState(threading.local):
    """What one thread is doing. In autograd's own threads these are the defaults."""

    api_mode: ApiMode | None = None
    aten_mode: AtenMode | None = None
    # The API call under way: its record, or what it takes to make one.
    api_call: Any = None
    quiet = 0


class Subscription:
    """The cached decision for one function: its name, the tools that want it, those that say they skip it."""

    __slots__ = (
        "backward", "by_own_name", "bystander", "decline", "name", "only_parent", "parent_for", "skipped", "takes_all",
        "ties", "tools", "views_whole",
    )  # fmt: skip

    def __init__(self, name: str, tools: Tools, skipped: Tools = (), parent_for: Tools = ()) -> None:
        self.name = name
        self.tools = tools
        self.skipped = skipped
        # Tools that take ATen calls, or leave them alone, by the API call they are part of.
        self.parent_for = parent_for
        self.only_parent = bool(parent_for) and not tools and not skipped
        # Whether no tool has to be asked about each call.
        self.takes_all = all(tool.takes_all for tool in tools)
        self.backward = any(tool.wants_backward for tool in tools)
        self.ties = bool(parent_for) or self.backward or any(tool.wants_ties for tool in tools)
        # At ATen level: whether some tool looks at every call, not only at those inside backward,
        self.views_whole = any(tool.aten_everywhere for tool in tools)
        # The only tool, if it can tell cheaply that it leaves a call alone, and what then stands for that call.
        self.decline = tools[0].declines if len(tools) == 1 and not skipped and not parent_for else None
        self.bystander = Call(self, None, (), {}, "api", 0, 0)
        # and whether some tool takes the call for its own name, not only for that of the call it is part of.
        self.by_own_name = any(tool.only is None and tool.names.match(name) for tool in tools)


Subscriptions = dict[Any, Subscription | None]


class Engine:
    """All of it for one process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tools: tuple[Tool, ...] = ()
        self.api_subscriptions: Subscriptions = {}
        self.aten_subscriptions: Subscriptions = {}
        self.local = ThreadState()
        self.failures = Failures()
        self.step = 0
        # Runs of backward under way that keep their graph for another one.
        self.graphs_kept = 0
        self._numbers = itertools.count(1)
        self._threads = 0
        self._patches = Patches(self)

    # -- which tools are on --------------------------------------------------------------------------------

    def start(self, tool: Tool) -> None:
        """Turn a tool on, for this thread and for threads started from now on."""
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

    def sync_thread(self) -> None:
        """Push or remove this thread's modes so that they fit the tools that are on."""
        self._want(any(tool.uses_api for tool in self.tools), any(tool.uses_aten for tool in self.tools))

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

    def next_id(self) -> int:
        """The next forward_id; one count for all tools."""
        return next(self._numbers)

    # -- decisions -----------------------------------------------------------------------------------------

    def subscribe_api(self, func: Any, name: str | None = None) -> Subscription | None:
        """Decide, once, who wants this function at API level."""
        name = name_of(func) if name is None else name
        everyone = self.tools
        subscription: Subscription | None = None
        never = name in NEVER or name.endswith((".__get__", ".__set__", ".__delete__"))
        tools = () if never else tuple(tool for tool in everyone if tool.wants_api(name, func))
        others = tuple(tool for tool in everyone if tool not in tools)
        parent_for = () if never else tuple(tool for tool in others if tool.wants_parent(name))
        skipped = tuple(t for t in others if t.says_skips and t.uses_api and not t.api_is_context)
        if tools or skipped or parent_for:
            subscription = Subscription(name, tools, skipped, parent_for)
        self._keep(self.api_subscriptions, func, subscription, everyone)
        return subscription

    def subscribe_aten(self, func: Any) -> Subscription | None:
        """Decide, once, who wants this operator at ATen level."""
        name = name_of(func)
        everyone = self.tools
        tools = () if name in NEVER_ATEN else tuple(tool for tool in everyone if tool.wants_aten(name, func))
        subscription = Subscription(name, tools) if tools else None
        for tool in tools:
            if tool.api_is_context and not tool.uses_api:
                tool.uses_api = True  # the operator was registered after the tool was started
                self.sync_thread()
        self._keep(self.aten_subscriptions, func, subscription, everyone)
        return subscription

    def _keep(
        self, subscriptions: Subscriptions, func: Any, subscription: Subscription | None, everyone: Any
    ) -> None:
        with self.lock:
            if everyone is not self.tools:  # a tool came or went meanwhile: the next call decides anew
                return
            if len(subscriptions) > 20_000:  # functions made on the fly
                subscriptions.clear()
            subscriptions[func] = subscription

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
            try:
                return func(*args, **kwargs)
            finally:
                local.api_call = None
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
        try:
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
        try:
            track = private.silently(self._begin, call, tools)
            local.api_call = call
            executes = [tool for tool in call.tools if tool.executes]
            result = self._execute(call, executes) if executes else func(*args, **kwargs)
        except BaseException:
            private.silently(self._failed, call)
            raise
        finally:
            local.api_call = None
        if track is not None or call.tools:
            private.silently(self._end, call, track, result)
        return result

    def _begin(self, call: Call, tools: list[Tool]) -> backward.Tracking | None:
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
                track = self.guarded(_first(call), call, backward.Tracking, call)
        for tool in call.tools:
            self.guarded(tool, call, tool.before, call)
        return track

    def _end(self, call: Call, track: backward.Tracking | None, result: Any) -> None:
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
        """A call at ATen level that somebody may want. Function modes are off."""
        if subscription is UNKNOWN:
            subscription = self.guarded(None, None, self.subscribe_aten, func)
        local = self.local
        if subscription is None or local.quiet:
            return func(*args, **kwargs)
        api_call = local.api_call
        if (
            api_call is not None
            and not subscription.views_whole
            and (type(api_call) is tuple or not api_call.decomposed)
        ):
            return func(*args, **kwargs)
        node = private.current_node()
        origin = node.metadata.get(backward.KEY) if node is not None else None
        if not subscription.by_own_name and api_call is None and origin is None:
            return func(*args, **kwargs)
        if (node is not None and backward.is_compiled(node)) or private.fake_mode_active():
            return func(*args, **kwargs)
        tensors = flat_tensors(args, kwargs)
        kinds = device_types(tensors)
        tools = [tool for tool in subscription.tools if tool.covers(kinds)]
        if not tools:
            return func(*args, **kwargs)
        if type(api_call) is tuple:
            api_call = self.guarded(None, None, self._parent, api_call)
            if api_call is not None:
                local.api_call = api_call  # of all ATen calls in it
        call = Call(subscription, func, args, kwargs, "aten", 0, self.step, tensors)
        call.parent, call.in_backward, call.origin = api_call, node is not None, origin
        try:
            private.silently(self._begin_aten, call, tools)
            if not call.tools:
                return func(*args, **kwargs)
            executes = [tool for tool in call.tools if tool.executes]
            result = self._execute(call, executes) if executes else func(*args, **kwargs)
        except BaseException:
            private.silently(self._failed, call)
            raise
        private.silently(self._end, call, None, result)
        return result

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
        try:
            return private.silently(function, *args)
        finally:
            self.local.quiet -= 1

    def guarded(self, tool: Tool | None, call: Call | None, function: Any, *args: Any) -> Any:
        """Run a part of a tool. Its errors become one row of its report; the device's own go to the user."""
        local = self.local
        local.quiet += 1
        try:
            return function(*args)
        except DeviceError as error:
            raise error.original from None
        except Exception as error:
            self.failures.report(tool, call, error)
            return None
        finally:
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
