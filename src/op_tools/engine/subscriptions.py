"""Which tools want a function or an operator: decided once for each, and kept until a tool comes or goes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from op_tools.categories import names_in
from op_tools.engine.call import Call
from op_tools.names import name_of

if TYPE_CHECKING:
    from op_tools.tool import Tool

    Tools = tuple[Tool, ...]

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
        # What makes and takes apart pairs of a value and its tangent: a tangent is part of the call it is computed in.
        "torch._make_dual", "torch._unpack_dual",
    }
)  # fmt: skip
# Only ever bookkeeping at ATen level.
NEVER_ATEN = names_in(
    "aten.detach.default aten.alias.default aten.is_pinned.default aten.record_stream.default"
)


class Subscription:
    """The cached decision for one function: its name, the tools that want it, those that say they skip it."""

    __slots__ = (
        "backward", "by_own_name", "bystander", "decline", "name", "only_parent", "parent_for", "sampler", "skipped",
        "takes_all", "ties", "tools", "views_whole", "wakes",
    )  # fmt: skip

    def __init__(self, name: str, tools: Tools, skipped: Tools = (), parent_for: Tools = ()) -> None:
        self.name = name
        self.tools = tools
        self.skipped = skipped
        # Tools that take ATen calls, or leave them alone, by the API call they are part of.
        self.parent_for = parent_for
        self.only_parent = bool(parent_for) and not tools and not skipped
        # Whether a tool may take what is inside, or in backward.
        self.wakes = any(tool.uses_aten for tool in (*tools, *parent_for))
        # Whether no tool has to be asked about each call.
        self.takes_all = all(tool.takes_all for tool in tools)
        self.backward = any(tool.wants_backward for tool in tools)
        self.ties = bool(parent_for) or self.backward or any(tool.wants_ties for tool in tools)
        # At ATen level: whether some tool looks at every call, not only at those inside backward,
        self.views_whole = any(tool.aten_everywhere for tool in tools)
        # The only tool, if it can tell cheaply that it leaves a call alone, and what then stands for that call.
        self.decline = tools[0].declines if len(tools) == 1 and not skipped and not parent_for else None
        self.sampler = tools[0].native_sampler if len(tools) == 1 else None
        self.bystander = Call(self, None, (), {}, "api", 0, 0)
        # and whether some tool takes the call for its own name, not only for that of the call it is part of.
        self.by_own_name = any(tool.names_kernel(name) for tool in tools)


Subscriptions = dict[Any, Subscription | None]


class Decisions:
    """Who wants what, of the tools that are on. A decision is made at the first call of a function and kept until they change."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tools: Tools = ()
        self.api_subscriptions: Subscriptions = {}
        self.aten_subscriptions: Subscriptions = {}

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
        """Decide, once, who wants this operator from the dispatch mode, or from the kernel that was taken for it."""
        everyone = self.tools
        subscription = self.wanting(
            func, [tool for tool in everyone if tool.executes or not self.has_native()]
        )
        self._keep(self.aten_subscriptions, func, subscription, everyone)
        return subscription

    def has_native(self) -> bool:
        """Whether tools that only observe get their calls at ATen level from the compiled part."""
        return False

    def wanting(self, func: Any, everyone: list[Tool]) -> Subscription | None:
        """Who of these tools wants an operator at ATen level; None if nobody does."""
        name = name_of(func)
        tools = () if name in NEVER_ATEN else tuple(tool for tool in everyone if tool.wants_aten(name, func))
        return Subscription(name, tools) if tools else None

    def _keep(
        self, subscriptions: Subscriptions, func: Any, subscription: Subscription | None, everyone: Any
    ) -> None:
        with self.lock:
            if everyone is not self.tools:  # a tool came or went meanwhile: the next call decides anew
                return
            if len(subscriptions) > 20_000:  # functions made on the fly
                subscriptions.clear()
            subscriptions[func] = subscription
