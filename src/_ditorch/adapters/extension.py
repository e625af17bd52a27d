"""Frameworks that are a package beside torch: importing it registers a device in torch's one free slot.

That slot (PrivateUse1) is given away once in a process. Importing a package only to look whether it has a
device would take the slot from all others, and a package that cannot work here may fail in any way, even
after it has taken it. So a package that is not loaded yet is looked at in a process of its own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import torch

from _ditorch.adapters.base import Adapter, Availability, importing_framework

__all__ = ["ExtensionAdapter"]

_FREE = "privateuseone"
FREE_PRIVATEUSE1 = (
    "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that `import torch` registers none, and import only the package "
    "you want"
)


def registered_device() -> str:
    """The name that torch's one slot (PrivateUse1) was given in this process; empty while it is free."""
    # Private, but the only way to ask: the public function of torch.utils can only set the name.
    name: str = torch._C._get_privateuse1_backend_name()
    return "" if name == _FREE else name


class ExtensionAdapter(Adapter):
    """Everything but the facts, which a subclass states."""

    def requested(self) -> str:
        if self.package in sys.modules and self.availability().usable:
            return f"the program imported {self.package}"
        return ""

    def availability(self) -> Availability:
        owner = registered_device()
        if owner == self.device_type:
            return self.ask(self.version())
        found = probe(self.package, self.device_type)
        if found.error:
            return Availability(
                devices=0,
                missing=f"{self.package} is installed but cannot be imported: {found.error}",
                advice=self.advice_for(found.error),
                broken=True,
                version=found.version,
            )
        if owner and found.devices:
            return Availability(
                devices=0,
                missing=privateuse1_is_taken(owner),
                advice=FREE_PRIVATEUSE1,
                kept_out=found.devices,
                version=found.version,
            )
        return self.counted(found.devices, found.version)

    def advice_for(self, error: str) -> str:
        """What to do about an import that failed with this text."""
        return f"check {self.tools}, and that the package fits torch {torch.__version__}"

    def load(self) -> None:
        owner = registered_device()
        if owner not in ("", self.device_type):
            raise ImportError(f"{privateuse1_is_taken(owner)}. To use {self.package}, {FREE_PRIVATEUSE1}")
        with importing_framework():
            importlib.import_module(self.package)
        if getattr(torch, self.device_type, None) is None:
            raise ImportError(f"its import has not made torch.{self.device_type}")

    def version(self) -> str:
        version = getattr(sys.modules.get(self.package), "__version__", "")
        if version:
            return str(version)
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"


def privateuse1_is_taken(owner: str) -> str:
    """Why a second package cannot register its device."""
    return f"this process has given torch's one slot for such a device (PrivateUse1) to '{owner}'"


# -- looking at a package in a process of its own: what it does there, and how it fails, changes nothing here ---

_LIMIT_SECONDS = 120.0
_MARK = "ditorch-probe:"
# The answer is one line behind a mark, because packages print while they are imported. The process ends
# without its atexit functions: some drivers hang there when no card was used.
_PROGRAM = f"""
import importlib, json, os, sys
sys.path[:] = json.loads(sys.argv[1])
package, device_type = sys.argv[2:]
found = {{"devices": 0, "version": "", "error": ""}}
try:
    import torch
    module = importlib.import_module(package)
    found["version"] = str(getattr(module, "__version__", ""))
    found["devices"] = int(getattr(torch, device_type).device_count())
except BaseException as error:
    lines = str(error).strip().splitlines()
    found["error"] = type(error).__name__ + (": " + lines[0] if lines else "")
sys.stdout.write("\\n{_MARK}" + json.dumps(found) + "\\n")
sys.stdout.flush()
os._exit(0)
"""


@dataclass(frozen=True)
class ProbedPackage:
    """What importing a package gave: a number of devices, or the error."""

    devices: int
    version: str = ""
    error: str = ""


@functools.cache
def probe(package: str, device_type: str) -> ProbedPackage:
    """Import `package` in a new interpreter and count the devices of `torch.<device_type>` there; once."""
    if not sys.executable:  # Python inside another program
        return ProbedPackage(
            0, error="it can only be looked at by a second interpreter, and none is known here"
        )
    path = json.dumps([str(entry) for entry in sys.path])
    command = [sys.executable, "-c", _PROGRAM, path, package, device_type]
    # Only this package shall take the place of a device, and none of ours shall start in the child.
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "DIPU_MOCK_CUDA": "0"}
    try:
        child = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbedPackage(0, error=f"its import did not end within {_LIMIT_SECONDS:.0f} s")
    except OSError as error:
        return ProbedPackage(0, error=f"no process could be started to look at it ({error})")
    for line in reversed(child.stdout.splitlines()):
        if line.startswith(_MARK):
            return ProbedPackage(**json.loads(line[len(_MARK) :]))
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return ProbedPackage(0, error=f"its import ended the process with code {child.returncode} ({last})")
