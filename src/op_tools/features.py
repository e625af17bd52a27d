"""apply_feature: a tool on chosen functions only, under a condition, until it is removed.

Functions of torch are taken by the engine's modes, under whatever name the program calls them. Functions and methods
of other packages are replaced where they live, and put back by `remove()`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from dicore.settings import variables_of
from op_tools import registry
from op_tools.engine import ENGINE, native
from op_tools.engine.call import WRAPPER, Call, device_types
from op_tools.engine.subscriptions import Subscription
from op_tools.names import RefusedName, function_named, name_of
from op_tools.settings import ToolSettings
from op_tools.tool import Tool
from op_tools.trees import flat_tensors


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


class Feature(contextlib.AbstractContextManager["Feature"]):
    """What apply_feature returns: the tool at work, and the way to take it back."""

    def __init__(self, tool: Tool, routes: list[Route]) -> None:
        self.tool = tool
        self._routes = routes

    @property
    def active(self) -> bool:
        """Whether the feature is still applied."""
        return self.tool.running

    def remove(self) -> None:
        """Take the feature back; functions are what they were before. Calling it again does nothing."""
        for route in self._routes:
            route.leave(self.tool)
        self._routes = []
        self.tool.stop()

    def __exit__(self, *_: object) -> None:
        self.remove()


class Route:
    """A function or method of another package, led through the engine for the tools that are on it."""

    def __init__(self, owner: Any, attribute: str, name: str) -> None:
        self.owner = owner
        self.attribute = attribute
        self.name = name
        self.tools: tuple[Tool, ...] = ()
        self.raw = inspect.getattr_static(owner, attribute)
        self.was_own = attribute in vars(owner)
        function = self.raw.__func__ if isinstance(self.raw, (staticmethod, classmethod)) else self.raw
        if not isinstance(owner, (type, ModuleType)):
            function = getattr(owner, attribute)  # one object's method, already bound to it
        if not callable(function):
            raise TypeError(f"{name} is not a function: {type(function).__name__}")
        routed = self._routed(function)
        if isinstance(self.raw, (staticmethod, classmethod)):
            routed = type(self.raw)(routed)  # type: ignore[assignment]
        self.routed = routed
        setattr(owner, attribute, routed)

    def _routed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def routed(*args: Any, **kwargs: Any) -> Any:
            if native.is_quiet() or ENGINE.local.api_call is not None:
                return function(*args, **kwargs)
            tensors = flat_tensors(args, kwargs)
            kinds = device_types(tensors)
            tools = [tool for tool in self.tools if tool.running and tool.covers(kinds)]
            if not tools or WRAPPER in kinds:
                return function(*args, **kwargs)
            subscription = Subscription(self.name, tuple(tools))
            call = Call(subscription, function, args, kwargs, "api", 0, ENGINE.step, tensors)
            return ENGINE.run_tools(call, tools)

        return routed

    def leave(self, tool: Tool) -> None:
        """Take a tool off; with the last one the original comes back, unless somebody else has replaced it since."""
        with ENGINE.lock:
            self.tools = tuple(other for other in self.tools if other is not tool)
            if self.tools:
                return
            _routes.pop((id(self.owner), self.attribute), None)
            if vars(self.owner).get(self.attribute) is not self.routed:
                return
            if self.was_own:
                setattr(self.owner, self.attribute, self.raw)
            else:
                delattr(self.owner, self.attribute)


# By owner and attribute: one function is replaced once, whatever the number of features on it.
_routes: dict[tuple[int, str], Route] = {}


def _join(owner: Any, attribute: str, name: str, tool: Tool) -> Route:
    with ENGINE.lock:
        key = (id(owner), attribute)
        route = _routes.get(key)
        if route is None:
            route = _routes[key] = Route(owner, attribute, name)
        route.tools = (*route.tools, tool)
        return route


def apply_feature(
    ops: str | Callable[..., Any] | Iterable[str | Callable[..., Any]],
    feature: str,
    condition_func: Callable[..., bool] = _always,
    **settings: Any,
) -> Feature:
    """Apply a tool to functions given by name or as objects, where `condition_func(*args, **kwargs)` is true.

    `feature` is fallback, autocompare, measure_op_time, dump_op_args, cast_dtype, op_capture, overflow_check, or that of a
    tool of your own.
    """
    classes = {tool.feature: tool for tool in registry.tools() if tool.feature}
    if feature not in classes:
        raise ValueError(f"unknown feature {feature!r}; expected one of {', '.join(classes)}")
    if not callable(condition_func):
        raise TypeError(f"condition_func must be callable, got {type(condition_func).__name__}")
    items = list(ops) if isinstance(ops, Iterable) and not isinstance(ops, str) else [ops]
    if not items:
        raise ValueError(
            "apply_feature needs at least one operator: a name such as 'torch.add', or a function"
        )
    # A feature on one function is asked for to look at that function: its tables are printed, unless told otherwise.
    settings.setdefault("verbose", None if variables_of(ToolSettings)["verbose"].name in os.environ else True)
    tool = classes[feature](**settings)
    tool.condition = condition_func
    taken: set[Any] = set()
    foreign: list[tuple[Any, str, str]] = []
    for item in items:
        function, owner, attribute, name = _find(item)
        if owner is None:
            taken |= {function, name}
        else:
            foreign.append((owner, attribute, name))
    tool.only = frozenset(taken)
    tool.start()
    routes: list[Route] = []
    try:
        routes.extend(_join(owner, attribute, name, tool) for owner, attribute, name in foreign)
    except BaseException:
        Feature(tool, routes).remove()
        raise
    return Feature(tool, routes)


def _find(item: Any) -> tuple[Any, Any, str, str]:
    """The function of torch (owner None), or where a foreign function lives: (function, owner, attribute, name)."""
    if isinstance(item, str):
        try:
            function = function_named(item)
            return function, None, "", name_of(function)
        except RefusedName as refused:
            return _foreign(item.strip(), refused)
    if not callable(item):
        raise TypeError(f"expected the name of an operator or a function, got {type(item).__name__}")
    function = inspect.unwrap(item) if not isinstance(item, type) else item
    name = name_of(item)
    if _is_torch(item, name):
        return item, None, "", name
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if inspect.ismethod(item):  # one object's method: only that object is touched
        return item, item.__self__, item.__name__, f"{type(item.__self__).__qualname__}.{item.__name__}"
    if not module or "<locals>" in path or "<lambda>" in path:
        raise ValueError(
            f"{name} cannot be found again by its name (it was made inside a function); give apply_feature a function "
            "of a module or a method of a class"
        )
    return _foreign(f"{module}.{path}", None)


def _is_torch(function: Any, name: str) -> bool:
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    try:
        return function_named(name) is function
    except RefusedName:
        return False


def _foreign(name: str, refused: Exception | None) -> tuple[Any, Any, str, str]:
    path, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        owner = pkgutil.resolve_name(path)
        function = getattr(owner, attribute)
        if not callable(function):
            raise TypeError(f"{name} is not a function but a {type(function).__name__}")
        return function, owner, attribute, name
    raise ValueError(
        f"there is no function {name!r}. Expected a full name such as 'torch.add', 'torch.Tensor.add', "
        f"'torch.nn.functional.linear' or 'package.module.function'" + (f" ({refused})" if refused else "")
    )
