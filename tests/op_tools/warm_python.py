"""Processes that have torch, the device and the tools loaded when they begin: one interpreter imports, children are forked.

Each piece of code runs in a process of its own with its own arguments and streams, and ends as a program ends. What is
forked has never used the device, so that it starts as in a fresh interpreter, only sooner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

_PARENT = """
import json, os, signal, sys
sys.argv = ["-c"]
import torch, torch_dipu, op_tools, op_tools.bisect.driver
import op_tools.tools.autocompare, op_tools.tools.capture, op_tools.tools.fallback
for line in sys.stdin:
    code, arguments, settings, out, err = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for path, descriptor in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(settings)
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<warm>", "exec"), {"__name__": "__main__"})
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class WarmPython:
    """One parent; `run` gives it one piece of work at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parent: subprocess.Popen[str] | None = None

    def run(self, code: str, *arguments: str, out: Path, err: Path, **settings: str) -> int:
        """The exit code of the code in a process of its own."""
        with self._lock:
            if self._parent is None:
                self._parent = subprocess.Popen(
                    [sys.executable, "-c", _PARENT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            assert self._parent.stdin is not None and self._parent.stdout is not None
            work = (code, arguments, {"PYTHONUNBUFFERED": "1", **settings}, str(out), str(err))
            self._parent.stdin.write(json.dumps(work) + "\n")
            self._parent.stdin.flush()
            answer = self._parent.stdout.readline()
            while answer.startswith("ditorch.framework"):
                answer = self._parent.stdout.readline()
            return int(answer)

    def close(self) -> None:
        """End the parent."""
        if self._parent is not None:
            assert self._parent.stdin is not None
            self._parent.stdin.close()
            self._parent.wait()
