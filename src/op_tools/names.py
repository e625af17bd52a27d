"""Names of operators: from a function to its name, and from a name back to a function that is safe to run.

A capture names its operator in text, and a capture may come from anywhere. Hence the way back is a list of
what is let in, not of what is kept out: functions that PyTorch itself offers for overriding, tensor
factories, and the operator overloads of `aten`. What remains in those lists and can touch files, hooks, raw
memory or packed pointers is struck out again. Functions of other packages need the user's word (`allow`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from op_tools.categories import names_in

__all__ = ["RefusedName", "function_named", "name_of", "registered_operators", "torch_functions"]


class RefusedName(ValueError):
    """A capture names a function that replay does not run; the message says why and what would help."""


# Overridable, yet not a computation on values: files, hooks, code, raw memory, or nothing to compare.
_DENIED_METHODS = names_in(
    """set_ resize_ resize_as_ resize resize_as resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_
    _coalesced_ share_memory_ record_stream register_hook register_post_accumulate_grad_hook retain_grad
    requires_grad_ backward apply_ map_ map2_ module_load storage untyped_storage storage_type data_ptr
    const_data_ptr numpy __array__ __array_wrap__ __deepcopy__ __dlpack__ __dlpack_device__ __reduce_ex__
    __setstate__ __repr__ __format__ _clear_non_serializable_cached_data"""
)
_DENIED_FUNCTIONS = frozenset(["autocast", "is_distributed", "choose_qparams_optimized"])
# Attributes that show a value. The others (hooks, grad_fn, _cdata, ...) show objects or addresses.
_READABLE_ATTRIBUTES = frozenset(["H", "T", "data", "grad", "imag", "mH", "mT", "real", "shape"])

# PyTorch keeps these out of the overridable list because subclasses do not see them; a mode does.
_FACTORIES = names_in(
    """arange blackman_window empty empty_strided eye full hamming_window hann_window kaiser_window linspace
    logspace normal ones rand randint randn randperm tril_indices triu_indices zeros
    rand_like randn_like randint_like zeros_like ones_like full_like empty_like"""
)
_FACTORY_METHODS = frozenset(["new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"])
_INITIALISERS = names_in(
    """constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ trunc_normal_
    uniform_ xavier_normal_ xavier_uniform_ zeros_"""
)
# What PyTorch's own optimisers call; private names, tensor lists in and out.
_OPTIMISER_FUNCTIONS = re.compile(r"_(foreach|fused)_[a-z0-9_]+")

_DENIED_OPERATORS = names_in(
    """from_file set_ set set_data resize_ resize resize_as_ resize_as resize_as_sparse resize_as_sparse_
    _resize_output _resize_output_ sparse_resize sparse_resize_ sparse_resize_and_clear
    sparse_resize_and_clear_ _coalesced_ _coalesced _reshape_alias record_stream pin_memory _pin_memory
    _copy_from_and_resize _nested_view_from_buffer _nested_view_from_buffer_copy _nested_view_from_jagged
    _nested_view_from_jagged_copy load save _print warn retain_grad requires_grad_ _backward backward
    _version rename rename_ data"""
)
# Packed weights are raw pointers inside a tensor; the unsafe constructors skip the check of indices.
_DENIED_OPERATOR_FORMS = re.compile(
    r".*_tensor_unsafe|fbgemm_.*|quantized_.*|_wrapped_.*linear.*|.*_prepack(ed)?"
)

_NAMESPACES = (
    "torch.Tensor", "torch.nn.functional", "torch.nn.init", "torch.functional", "torch.linalg", "torch.special",
    "torch.fft", "torch",
)  # fmt: skip
_NEVER_ALLOWED = frozenset(sys.stdlib_module_names) | {"builtins", "op_tools", "pip", "setuptools", "torch"}
_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 256


# torch compares these functions equal and gives the last of them as the name of all.
_COMMON_NAMES = {"torch.spmm": "torch.mm"}


def name_of(func: Callable[..., Any]) -> str:
    """The name users see: 'torch.Tensor.add', 'torch.nn.functional.linear', 'aten.add.Tensor'."""
    try:
        return _cached_name(func)
    except TypeError:  # not hashable
        return _name(func)


def _name(func: Callable[..., Any]) -> str:
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(func)
    try:
        resolved = resolve_name(func)
    except Exception:  # a callable with a hostile __hash__ or __eq__ still has a name
        resolved = None
    resolved = _COMMON_NAMES.get(resolved, resolved) if resolved else resolved
    return resolved or _attribute_access(func) or _written_name(func)


_cached_name = functools.lru_cache(maxsize=8192)(_name)


def registered_operators() -> Iterator[str]:
    """The names of all operators that the dispatcher knows now: 'aten.add.Tensor', 'aten.relu.default'."""
    for name in torch._C._dispatch_get_all_op_names():
        operator, _, overload = name.partition(".")
        yield operator_name(operator, overload)


def operator_name(operator: str, overload: str) -> str:
    """'aten::add' and 'Tensor' as 'aten.add.Tensor', 'aten::relu' and '' as 'aten.relu.default'."""
    return f"{operator.replace('::', '.')}.{overload or 'default'}"


def _attribute_access(func: Callable[..., Any]) -> str | None:
    """Setting an attribute of a tensor is a call too: 'torch.Tensor.data.__set__'."""
    descriptor = getattr(func, "__self__", None)
    attribute = getattr(descriptor, "__name__", None)
    if attribute is None and isinstance(descriptor, property) and descriptor.fget is not None:
        attribute = descriptor.fget.__name__
    if isinstance(attribute, str) and getattr(torch.Tensor, attribute, None) is descriptor:
        return f"torch.Tensor.{attribute}.{getattr(func, '__name__', '__call__')}"
    return None


def _written_name(func: Callable[..., Any]) -> str:
    if isinstance(func, functools.partial):
        return name_of(func.func)
    named = getattr(func, "__qualname__", None) or getattr(func, "__name__", None)
    qualified = str(named or type(func).__qualname__)
    owner, _, last = qualified.rpartition(".")
    if owner == "_VariableFunctionsClass":  # where PyTorch's generated functions live
        return f"torch.{last}"
    module = getattr(func, "__module__", None)
    return f"{module}.{qualified}" if isinstance(module, str) else qualified


def function_named(name: str, *, allow: Iterable[str] = ()) -> Callable[..., Any]:
    """The function a capture names. Raises RefusedName for anything but a computation on tensors."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise RefusedName(f"an operator name is a text of at most {_LONGEST_NAME} characters")
    allowed = tuple(allow)
    parts = name.replace("::", ".").split(".")
    if not all(_PART.fullmatch(part) for part in parts):
        raise RefusedName(f"{name!r} is not the name of an operator (names joined by dots were expected)")
    if parts[0] == "aten" or parts[:2] == ["torch", "ops"]:
        return _operator(name, parts[2:] if parts[0] == "torch" else parts, allowed)
    if parts[0] == "torch":
        return _torch_function(name)
    return _foreign_function(name, parts, allowed)


def _torch_function(name: str) -> Callable[..., Any]:
    func = torch_functions().get(name)
    if func is None:
        reason = (
            "it needs the other processes of its group"
            if name.startswith("torch.distributed.")
            else "only PyTorch's overridable functions, tensor factories and aten operators are"
        )
        raise RefusedName(f"{name!r} is not run by replay: {reason}")
    return func


@functools.cache
def torch_functions() -> dict[str, Callable[..., Any]]:
    """The functions of torch that compute on tensors, by name."""
    overridable = get_overridable_functions()
    listed = {func for functions in overridable.values() for func in functions}
    found: dict[str, Callable[..., Any]] = {}
    for namespace in _NAMESPACES:
        owner = functools.reduce(getattr, namespace.split(".")[1:], torch)
        for attribute in dir(owner):
            found.update(_admitted(namespace, attribute, getattr(owner, attribute, None), listed))
    return found


def _admitted(
    namespace: str, attribute: str, value: Any, overridable: set[Callable[..., Any]]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    if namespace == "torch.Tensor":
        if attribute in _READABLE_ATTRIBUTES:
            yield f"{namespace}.{attribute}.__get__", value.__get__
        listed = attribute in _FACTORY_METHODS or (
            _is_among(value, overridable) and attribute not in _DENIED_METHODS
        )
    elif namespace == "torch.nn.init":
        listed = attribute in _INITIALISERS
    else:
        listed = (
            attribute in _FACTORIES
            or _OPTIMISER_FUNCTIONS.fullmatch(attribute) is not None
            or (_is_among(value, overridable) and attribute not in _DENIED_FUNCTIONS | _DENIED_OPERATORS)
        ) and not _DENIED_OPERATOR_FORMS.fullmatch(attribute)
    if listed and callable(value):
        yield f"{namespace}.{attribute}", value


def _is_among(value: Any, functions: set[Callable[..., Any]]) -> bool:
    try:
        return value in functions
    except TypeError:  # not hashable, hence not one of PyTorch's functions
        return False


def _operator(name: str, parts: list[str], allowed: tuple[str, ...]) -> Callable[..., Any]:
    """An operator overload: namespace, operator and, where there is more than one, the overload."""
    if not 2 <= len(parts) <= 3:
        raise RefusedName(f"{name!r} is not the name of an operator overload such as 'aten.add.Tensor'")
    namespace, operator = parts[:2]
    if namespace != "aten" and namespace not in allowed:
        raise RefusedName(
            f"{name!r} is not an aten operator; --allow {namespace} lets the others of that name in"
        )
    if operator in _DENIED_OPERATORS or _DENIED_OPERATOR_FORMS.fullmatch(operator):
        raise RefusedName(f"{name!r} is refused: it touches files, hooks or raw memory, not only values")
    func = _overload(*parts)
    if func is None:
        raise RefusedName(f"this torch has no operator {name!r}")
    if not _has_tensor(func):
        raise RefusedName(f"{name!r} is refused: it neither takes nor gives a tensor")
    return func


def _overload(namespace: str, operator: str, overload: str | None = None) -> Any:
    try:
        found = getattr(getattr(torch.ops, namespace), operator)
        found = found if overload is None else getattr(found, overload)
    except (AttributeError, RuntimeError):
        return None
    # `aten.add.__init__` is an attribute too, and no operator.
    return found if isinstance(found, torch._ops.OpOverload | torch._ops.OpOverloadPacket) else None


def _has_tensor(func: Any) -> bool:
    is_overload = isinstance(func, torch._ops.OpOverload)
    overloads = [func] if is_overload else [getattr(func, name) for name in func.overloads()]
    values = (v for one in overloads for v in (*one._schema.arguments, *one._schema.returns))
    return any("Tensor" in str(value.type) for value in values)


def _foreign_function(name: str, parts: list[str], allowed: tuple[str, ...]) -> Callable[..., Any]:
    if parts[0] in _NEVER_ALLOWED:
        raise RefusedName(
            f"{name!r} is refused: {parts[0]} is not a package of operators, and cannot be allowed"
        )
    package = next((item for item in allowed if name.startswith(f"{item}.")), None)
    if package is None:
        raise RefusedName(f"{name!r} is not a function of PyTorch; --allow {parts[0]} lets that package in")
    found = _walk(parts, package)
    # A package's name may also be the namespace of the operators it registered.
    if found is None and len(parts) in (2, 3) and _overload(*parts) is not None:
        found = _operator(name, parts, allowed)
    if found is None:
        raise RefusedName(f"{name!r} was not found in package {package!r}, or leads out of it")
    return found


def _walk(parts: list[str], package: str) -> Callable[..., Any] | None:
    """Follow the dots without ever leaving the package: `pkg.os.system` must not be found through pkg."""
    owner: Any = None
    for depth in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            continue
        break
    if owner is None:
        return None
    for part in parts[depth:]:
        if not _belongs(owner, package):
            return None
        owner = getattr(owner, part, None)
    return owner if _is_operator_of(owner, package) else None


def _belongs(value: Any, package: str) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(home, str) and (home == package or home.startswith(f"{package}."))


def _is_operator_of(value: Any, package: str) -> bool:
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    if inspect.isclass(value) or isinstance(value, ModuleType) or not callable(value):
        return False
    owner = getattr(value, "__self__", None)
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return _belongs(owner, package) and value.__name__ == "apply"
    return _belongs(value, package)
