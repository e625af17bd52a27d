"""Names of cuda in distributed training and data loading."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import torch.utils.data

from _ditorch.mapping import device_names
from _ditorch.mapping.patches import Patches, disguise
from _ditorch.mapping.translation import Target, translate_all, translate_type
from _ditorch.mapping.unmapped import explain_missing

__all__ = ["apply"]

_SOURCE_BACKEND = "nccl"
_SOURCE_CLASS = "ProcessGroupNCCL"
_WITH_BACKEND = (
    "init_process_group",
    "is_backend_available",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
)


def apply(patches: Patches, target: Target) -> None:
    _data_loader(patches, target)
    if not torch.distributed.is_available():
        return
    _device_mesh(patches, target)
    _checkpoints(patches, target)
    if target.process_group is not None:
        _process_groups(patches, target, target.process_group)


def _data_loader(patches: Patches, target: Target) -> None:
    original = torch.utils.data.DataLoader.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "pin_memory_device" in kwargs:
            kwargs["pin_memory_device"] = target.translate(kwargs["pin_memory_device"])
        original(self, *args, **kwargs)

    patches.wrap(torch.utils.data.DataLoader, init, "__init__")


def _device_mesh(patches: Patches, target: Target) -> None:
    import torch.distributed.device_mesh as mesh

    wrapper = translate_type(mesh.init_device_mesh, target)
    patches.wrap(mesh, wrapper, "init_device_mesh", also=[torch.distributed])
    mesh_init = mesh.DeviceMesh.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        mesh_init(self, target.translate_type(device_type), *args, **kwargs)

    patches.wrap(mesh.DeviceMesh, init, "__init__")


def _checkpoints(patches: Patches, target: Target) -> None:
    """A distributed checkpoint copies tensors to the host whose device has the name that torch finds here."""
    if not target.is_from_outside:
        return
    loaded = sys.modules.get("torch.distributed.checkpoint.filesystem")
    patches.set(torch._utils, "_get_available_device_type", lambda: target.device_type)
    if loaded is not None:
        patches.set(loaded, "_get_available_device_type", lambda: target.device_type)


def _process_groups(patches: Patches, target: Target, backend: str) -> None:
    c10d = torch.distributed.distributed_c10d

    def with_backend(original: Any) -> Any:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            if "backend" in bound.arguments:
                bound.arguments["backend"] = _translate_backend(bound.arguments["backend"], target, backend)
            return original(*bound.args, **bound.kwargs)

        return wrapper

    replacements = {name: with_backend(getattr(c10d, name)) for name in _WITH_BACKEND}
    replacements["is_nccl_available"] = lambda: c10d.is_backend_available(backend)
    replacements["get_default_backend_for_device"] = translate_all(
        c10d.get_default_backend_for_device, target
    )
    for name, replacement in replacements.items():
        also = [torch.distributed] if hasattr(torch.distributed, name) else []
        patches.wrap(c10d, replacement, name, also=also)
    _missing_class(patches, backend)
    _half_precision_hooks(patches)
    if device_names.wanted():
        _shown_backend(patches, backend)


def _missing_class(patches: Patches, backend: str) -> None:
    """A torch that was built without nccl lacks its class, whose options some programs set."""
    why = f"'nccl' means the backend '{backend}' here, which has no such class: leave pg_options out"
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        if not hasattr(module, _SOURCE_CLASS) and not hasattr(module, "__getattr__"):
            explained = explain_missing(module, lambda name: why if name == _SOURCE_CLASS else "")
            patches.set(module, "__getattr__", explained)


def _half_precision_hooks(patches: Patches) -> None:
    """`bf16_compress_hook`: DistributedDataParallel refuses it by its name unless torch was built with cuda and nccl."""
    parallel = torch.nn.parallel.DistributedDataParallel
    original = parallel._check_comm_hook

    def check(self: Any, hook: Any) -> None:
        if getattr(hook, "__name__", "") in ("bf16_compress_hook", "bf16_compress_wrapper_hook"):

            def same_signature(state: Any, bucket: Any) -> Any: ...

            same_signature.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
            hook = same_signature
        original(self, hook)

    patches.wrap(parallel, check, "_check_comm_hook")


def _shown_backend(patches: Patches, backend: str) -> None:
    """`dist.get_backend() == "nccl"`, by which programs choose between the device and the CPU."""
    original = torch.distributed.get_backend
    shown = device_names.ShownName(_SOURCE_BACKEND, also=backend)

    def get_backend(group: Any = None) -> str:
        name = original(group)
        return shown if name == backend else name

    # Only under the public name: torch's own code looks the backend up in tables by the other one.
    patches.set(torch.distributed, "get_backend", disguise(get_backend, original))


def _translate_backend(name: Any, target: Target, backend: str) -> Any:
    """'nccl' or 'cpu:gloo,cuda:nccl' in the device's terms; other names are left alone."""
    if not isinstance(name, str):
        return name
    parts = []
    for part in name.split(","):
        device, colon, communication = part.rpartition(":")
        communication = backend if communication.strip().lower() == _SOURCE_BACKEND else communication
        parts.append(f"{target.translate_type(device.strip())}{colon}{communication}")
    return ",".join(parts)
