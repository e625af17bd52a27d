"""Imports every module of some packages, one by one, and prints as JSON what each import changed elsewhere.

    python tests/import_everything.py '[{"packages": ["op_tools", "diopi"], "switches": [], "path": "."}]'

Each entry runs in a fork of its own, so that torch is loaded once for all. `switches` are packages that may change something:
they are imported, and then their modules as all others. `path` is a further folder to import from. torch is complete before the
first look: parts of it that it loads late (its compiler) change other parts, and that is torch's own doing.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import traceback
import warnings
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch.amp
import torch.distributed
import torch.nn.parallel
import torch.utils.data

OURS = {
    "dicore",
    "_ditorch",
    "ditorch",
    "dipu",
    "op_tools",
    "diopi",
    "torch_dipu",
    "torch_dipu_autoload",
    "dicp",
    "dlinfer",
}
HOLDERS: list[Any] = [
    builtins, importlib, os, torch, torch._C, torch.Tensor, torch.accelerator, torch.amp, torch.autograd,
    torch.backends, torch.cuda, torch.distributed, torch.nn.Module, torch.nn.functional, torch.utils.data,
]  # fmt: skip


_kernels = torch._C._dispatch_get_registrations_for_dispatch_key


def snapshot() -> dict[str, Any]:
    """Everything outside of our packages that an import could change, under names that say what it is."""
    seen: dict[str, Any] = {
        "sys.argv": list(sys.argv),
        "sys.path": list(sys.path),
        "sys.meta_path": [id(finder) for finder in sys.meta_path],
        "sys.path_hooks": [id(hook) for hook in sys.path_hooks],
        "sys.excepthook": id(sys.excepthook),
        "sys.stdout": id(sys.stdout),
        "sys.stderr": id(sys.stderr),
        "the working folder": os.getcwd(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signal handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's number of threads": torch.get_num_threads(),
        "torch's random state": hash(bytes(torch.get_rng_state().numpy())),
        "the name of PrivateUse1": torch._C._get_privateuse1_backend_name(),
        "kernels of PrivateUse1": [name for name in _kernels("PrivateUse1") if name.startswith("aten::")],
        "kernels of the CPU": [name for name in _kernels("CPU") if name.startswith("aten::")],
        "modes": torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack(),
    }
    for holder in HOLDERS:
        for key, value in list(vars(holder).items()):
            if not isinstance(value, ModuleType):  # a submodule is there once somebody imports it
                seen[f"{holder.__name__}.{key}"] = id(value)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in OURS:
            seen[f"sys.modules[{name!r}]"] = id(module)
    return seen | {f"os.environ[{key!r}]": value for key, value in os.environ.items()}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is there no more, what is another, and what is new, but for modules that were loaded."""
    gone = [f"{key} is gone" for key in before if key not in after]
    other = [f"{key} is another" for key in before if key in after and before[key] != after[key]]
    new = [f"{key} is new" for key in after if key not in before and not key.startswith("sys.modules[")]
    return sorted(gone + other + new)


def look_at_all(packages: list[str], switches: list[str], path: str) -> dict[str, Any]:
    """In a process that is thrown away: how many modules there are, and what their imports changed."""
    sys.path.insert(0, path)
    warnings.simplefilter("ignore")
    found: dict[str, list[str]] = {}
    count = 0
    before = snapshot()

    def look(name: str) -> None:
        nonlocal before
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # a library that is not here: vllm, triton
            if (error.name or "").partition(".")[0] in OURS:
                raise
        after = snapshot()
        if name not in switches and (changed := changes(before, after)):
            found[name] = changed
        before = after

    for package in packages:
        look(package)
        folders = getattr(sys.modules[package], "__path__", [])
        for module in pkgutil.walk_packages(folders, f"{package}.", onerror=lambda name: None):
            if not module.name.endswith(".__main__"):
                look(module.name)
                count += 1
    return {"count": count, "found": found}


def in_fork(entry: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps(look_at_all(**entry)).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as answer:
        told = answer.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{entry['packages']} cannot be imported; the reason is above")
    return json.loads(told)


if __name__ == "__main__":
    print(json.dumps([in_fork(entry) for entry in json.loads(sys.argv[1])]))
