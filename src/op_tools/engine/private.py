"""What the engine needs of torch that torch does not promise, in one place.

Tried with torch 2.11 to 2.13. When a newer torch moves one of these, this file is what changes.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.autograd.graph
import torch.overrides
import torch.utils._python_dispatch as dispatch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from op_tools.trees import map_tensors

# The number the next autograd node of this thread will get: nodes made by a call have numbers from before to after it.
next_node_number = torch._C._autograd._get_sequence_nr
# The autograd node whose backward runs on this thread, or None.
current_node: Callable[[], Any] = torch._C._current_autograd_node
# A node that stands for a leaf's gradient carries this number; it belongs to no call.
LEAF_NUMBER = 2**64 - 1

# Which run of backward a hook is called in.
graph_task = torch._C._current_graph_task_id

# Call a function when the run of backward that is under way has ended.
at_end_of_run: Callable[[Callable[[], Any]], None] = torch.autograd.Variable._execution_engine.queue_callback

functorch_active = torch._C._functorch.peek_interpreter_stack
_DIFFERENTIATING = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)

function_modes_on = torch._C._len_torch_function_stack
no_function_modes = torch._C.DisableTorchFunction
_no_dispatch_modes = torch._C._DisableTorchDispatch
dispatch_modes_on = torch._C._len_torch_dispatch_stack

Mode = TorchFunctionMode | TorchDispatchMode


def only_differentiates(_: Any = None) -> bool:
    """Whether the transforms under way are torch.func.grad, vjp and jvp alone."""
    layers = torch._C._functorch.get_interpreter_stack()
    return bool(layers) and all(layer.key() in _DIFFERENTIATING for layer in layers)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for many, as gradients do where a run of backward takes many directions at once."""
    return bool(
        torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def held_by(tensor: torch.Tensor) -> torch.Tensor:
    """What the tensors of these transforms hold: the plain tensor that a kernel gets."""
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def silently(function: Any, *args: Any) -> Any:
    """Run a part of the tools: no mode, ours or the program's, sees what it calls."""
    with no_function_modes():
        if not dispatch_modes_on():
            return function(*args)
        with _no_dispatch_modes():
            return function(*args)


def fake_mode_active() -> bool:
    """Whether tensors made now would be fake."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def results_on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call would return, without data; None where that cannot be known."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    def run() -> Any:
        with torch.no_grad():
            return func(*map_tensors(args, empty), **map_tensors(kwargs, empty))

    try:
        return silently(run)
    except Exception:  # no meta kernel, or a size that depends on data
        return None


def results_on_fake(func: Any, args: Any, kwargs: Any) -> Any:
    """The same with tensors that claim to be on the device, for what depends on the device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with no_function_modes(), FakeTensorMode(allow_fallback_kernels=False) as mode, torch.no_grad():
            return func(*map_tensors(args, mode.from_tensor), **map_tensors(kwargs, mode.from_tensor))
    except Exception:
        return None


# Our modes lie below all others on the stack. A mode of the program takes itself off by taking off what is on top:
# were ours above it, it would take off ours. Torch's flags "inside a dispatch mode" are left alone on purpose: only
# the compiler asks for them, and the compiler is not to know of ours.


def _pop_function_modes() -> list[Any]:
    """Take all function modes off, top first."""
    return [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]


def function_modes() -> list[TorchFunctionMode]:
    """The function modes of this thread, bottom first."""
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]


def _pop_dispatch_modes() -> list[Any]:
    """Take the program's dispatch modes off, top first; the compiler's own (fake, proxy) have slots of their own."""
    taken: list[TorchDispatchMode] = []
    while torch._C._len_torch_dispatch_stack() > 0:
        top = dispatch._get_current_dispatch_mode()
        if top is None or getattr(top, "_mode_key", None) is not None:
            break
        taken.append(dispatch._pop_mode())  # type: ignore[no-untyped-call]
    return taken


class _Stack:
    """This thread's stack of modes of one kind."""

    def __init__(self, pop_all: Callable[[], list[Any]], push: Callable[[Any], None]) -> None:
        self._pop_all, self._push = pop_all, push

    def push(self, mode: Mode) -> None:
        """Put a mode at the bottom."""
        for other in (mode, *reversed(self._pop_all())):
            self._push(other)

    def remove(self, mode: Mode) -> bool:
        """Take a mode off wherever it stands; False if it is not there."""
        modes = self._pop_all()
        for other in reversed(modes):
            if other is not mode:
                self._push(other)
        return any(other is mode for other in modes)


_function_stack: Any = _Stack(_pop_function_modes, torch.overrides._push_mode)
_dispatch_stack = _Stack(_pop_dispatch_modes, dispatch._push_mode)
try:
    _native: Any = importlib.import_module("op_tools._native")
    # No signal's handler can come in between and leave the program without its modes.
    _push_function_mode, _remove_function_mode = _native.push_function_mode, _native.remove_function_mode
except ImportError:
    _push_function_mode, _remove_function_mode = _function_stack.push, _function_stack.remove


def stack_of(kind: type[Mode]) -> tuple[Callable[[Any], None], Callable[[Any], bool]]:
    """How a mode of this kind is put at the bottom of this thread's stack, and how it is taken off it."""
    if issubclass(kind, TorchFunctionMode):
        return _push_function_mode, _remove_function_mode
    return _dispatch_stack.push, _dispatch_stack.remove


def push_mode(mode: Mode) -> None:
    """Put a mode at the bottom of this thread's stack of its kind."""
    stack_of(type(mode))[0](mode)


def remove_mode(mode: Mode) -> bool:
    """Take a mode off this thread's stack wherever it stands; False if it is not there."""
    return stack_of(type(mode))[1](mode)


def dispatch_modes() -> list[TorchDispatchMode]:
    """The dispatch modes of this thread, bottom first."""
    return [dispatch._get_dispatch_stack_at(index) for index in range(torch._C._len_torch_dispatch_stack())]


def replace(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Put something else under a name; the result puts the original back, unless somebody has replaced it since."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name, None) is replacement:
            setattr(owner, name, original)

    return undo


def patch_backward(wrapper: Any) -> Any:
    """Put `wrapper(original)` where Python enters the autograd engine; the result undoes it.

    A function mode is off while the call that starts backward is handled, and the engine hands the modes of that
    moment on to its threads. The wrapper turns the mode on again, so that what runs inside backward is seen.
    """
    replacement = wrapper(torch.autograd.graph._engine_run_backward)
    owners = (torch.autograd.graph, torch.autograd)
    undos = [replace(owner, "_engine_run_backward", replacement) for owner in owners]

    def undo() -> None:
        for step in undos:
            step()

    return undo


def patch_custom_functions(wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Put `wrapper(original)` where all of the program's autograd functions pass; the result undoes it.

    `Function.apply` itself is often kept in a variable at import; what it calls next is looked up at every call.
    """
    owner = torch.autograd.function._SingleLevelFunction

    def original(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return super(owner, cls).apply(*args, **kwargs)

    replacement = classmethod(wrapper(original))
    owner.apply = replacement  # type: ignore[attr-defined]

    def undo() -> None:
        if vars(owner).get("apply") is replacement:
            del owner.apply  # type: ignore[attr-defined]

    return undo


def follow_kernels(changed: Callable[[str, str], None]) -> Callable[[], None]:
    """Tell of each operator whose kernels a library of Python changes, by its name and overload; the result undoes it."""
    library = torch.library.Library
    impl, destroy = library.impl, library._destroy

    def tell(keys: Iterable[str]) -> None:
        for key in keys:  # aten/add.Tensor/CPU
            namespace, name, _ = key.split("/")
            operator, _, overload = name.partition(".")
            changed(f"{namespace}::{operator}", overload)

    @functools.wraps(impl)
    def with_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = set(self._op_impls)
        result = impl(self, *args, **kwargs)
        tell(self._op_impls - before)
        return result

    @functools.wraps(destroy)
    def with_destroy(self: Any) -> None:
        gone = set(self._op_impls)
        destroy(self)
        tell(gone)

    undos = [replace(library, "impl", with_impl), replace(library, "_destroy", with_destroy)]

    def undo() -> None:
        for step in undos:
            step()

    return undo


def hide_mode_from_modules(is_ours: Callable[[Any], bool]) -> Callable[[], None]:
    """Let modules of torch.nn decide as if no function mode of ours were on; the result undoes it.

    Multi-head attention and the transformer's layers take other kernels in evaluation when a tensor or a mode overrides
    functions: looking at them must not be the reason.
    """
    original = torch.overrides.has_torch_function

    def has_torch_function(tensors: Any) -> bool:
        in_module = sys._getframe(1).f_globals.get("__name__", "").startswith("torch.nn.modules.")
        if not in_module or not all(map(is_ours, function_modes())):
            return original(tensors)
        return any(
            type(tensor).__torch_function__ not in _NO_OVERRIDE for tensor in tensors if tensor is not None
        )

    return replace(torch.overrides, "has_torch_function", has_torch_function)


_NO_OVERRIDE = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a run of backward was asked to keep its graph: third argument of autograd's entry."""
    named = kwargs.get("keep_graph", kwargs.get("retain_graph", False))
    return bool(args[2] if len(args) > 2 else named)


def saving_is_hooked() -> bool:
    """Whether what autograd saves now goes through hooks: checkpointing, offloading to the host."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
