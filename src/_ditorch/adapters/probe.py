"""Looking at a package in a process of its own: what it does there, and how it fails, changes nothing here."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

__all__ = ["Finding", "probe"]

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
class Finding:
    """What importing a package gave: a number of devices, or the error."""

    devices: int
    version: str = ""
    error: str = ""


@functools.cache
def probe(package: str, device_type: str) -> Finding:
    """Import `package` in a new interpreter and count the devices of `torch.<device_type>` there; once."""
    if not sys.executable:  # Python inside another program
        return Finding(0, error="it can only be looked at by a second interpreter, and none is known here")
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
        return Finding(0, error=f"its import did not end within {_LIMIT_SECONDS:.0f} s")
    except OSError as error:
        return Finding(0, error=f"no process could be started to look at it ({error})")
    for line in reversed(child.stdout.splitlines()):
        if line.startswith(_MARK):
            return Finding(**json.loads(line[len(_MARK) :]))
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return Finding(0, error=f"its import ended the process with code {child.returncode} ({last})")
