"""Calls every operator of a DIOPI library with nonsense: an error is a good answer, a crash, a hang or a write elsewhere is not.

    python tests/diopi/diopi_fuzz.py --seconds 60                 # the simulated chip
    python tests/diopi/diopi_fuzz.py --library libmine.so --only diopiCat --seconds 20
    python tests/diopi/diopi_fuzz.py --replay crash.json          # one recorded call again

The calls are made in child processes. A child writes each call to a file before it makes it, so that the call that ended the
child is known; it is then made again alone to see whether it is to blame. Memory is bounded. Ends with 1 if something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz_calls import Caller, calls

from diopi.vendors.host import VENDOR

START_SECONDS = 120.0  # until the first call
GIVE_UP_AFTER = 2  # findings of one function; then it is left alone
ADDRESS_SPACE = 4 << 30


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child(options: argparse.Namespace) -> int:
    """Makes calls until the time is over; what it is doing stands in `options.log`."""
    _limit_memory()
    from diopi.library import Library

    caller = Caller(Library.open(options.library))
    counts: Counter[str] = Counter()
    log = Path(options.log)
    if options.replay:
        described = json.loads(Path(options.replay).read_text())
        print(json.dumps({"complaint": caller.call(described["function"], described["arguments"], counts)}))
        return 0
    skipped = set(filter(None, (options.skip or "").split(",")))
    wanted = sorted(
        f
        for f in caller.functions()
        if f not in skipped and (not options.only or f in options.only.split(","))
    )
    began = 0.0
    with log.open("w+b") as file:
        for function, arguments in calls(wanted, options.seed, options.seconds, changed=not options.nonsense):
            began = began or time.monotonic()
            spent = time.monotonic() - began
            text = json.dumps(
                {"function": function, "arguments": arguments, "counts": counts, "spent": spent}
            )
            file.seek(0)
            file.write(text.encode())
            file.truncate()
            file.flush()
            if complaint := caller.call(function, arguments, counts):
                print(
                    json.dumps({"complaint": complaint, "function": function, "arguments": arguments}),
                    flush=True,
                )
    print(json.dumps({"counts": counts, "functions": len(wanted), "spent": options.seconds}), flush=True)
    return 0


def _start(options: argparse.Namespace, log: Path, *extra: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        __file__,
        "--child",
        "--library",
        str(options.library),
        "--log",
        str(log),
        *extra,
    ]
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "DIPU_HOST_MEMORY": "1G",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def _watch(process: subprocess.Popen[str], log: Path, patience: float) -> tuple[str, str, bool]:
    """Waits for the child; one that has not begun a new call for long is ended."""
    while True:
        try:
            out, err = process.communicate(timeout=1)
            return out, err, False
        except subprocess.TimeoutExpired:
            allowed = patience if log.stat().st_size else START_SECONDS
            if time.time() - log.stat().st_mtime > allowed:
                process.kill()
                out, err = process.communicate()
                return out, err, True


def _reproduces(options: argparse.Namespace, call: dict[str, Any], folder: Path) -> bool:
    """Whether the call alone ends a fresh process too."""
    replay, log = folder / "replay.json", folder / "replay.log"
    replay.write_text(json.dumps(call))
    log.write_text("")
    process = _start(options, log, "--replay", str(replay))
    try:
        process.communicate(timeout=options.patience + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    return process.returncode != 0


def _ending(returncode: int, err: str, hung: float) -> str:
    if hung:
        return f"hangs for more than {hung:.0f} s"
    how = f"dies of {signal.Signals(-returncode).name}" if returncode < 0 else f"ends with {returncode}"
    words = [line for line in err.strip().splitlines() if "what()" in line or "Error" in line]
    return f"{how} ({words[-1].strip()[:200]})" if words else how


class Fuzzing:
    """Children one after the other until they have called for long enough."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.findings: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self.functions = 0
        self._left = options.seconds

    def run(self) -> None:
        """Fills findings and counts."""
        with tempfile.TemporaryDirectory() as folder:
            while self._left > 0.2:
                self._one_child(Path(folder))

    def _one_child(self, folder: Path) -> None:
        log = folder / "call.json"
        log.write_text("")
        process = _start(self.options, log, *self._flags())
        out, err, hung = _watch(process, log, self.options.patience)
        for line in filter(None, out.splitlines()):
            self._take(json.loads(line))
        if process.returncode != 0:
            text = log.read_text().strip()
            if not text:
                raise SystemExit(f"the child could not begin: {err.strip()[-2000:]}")
            call = json.loads(text)
            self._take({"counts": call.pop("counts"), "spent": call.pop("spent") + 0.02})
            what = _ending(process.returncode, err, hung * self.options.patience)
            call = {**call, "what": what, "reproduces": _reproduces(self.options, call, folder)}
            self.findings.append(call)

    def _flags(self) -> list[str]:
        blamed = Counter(f["function"] for f in self.findings)
        skip = ",".join(f for f, n in blamed.items() if n >= GIVE_UP_AFTER)
        seed = self.options.seed + len(self.findings)
        flags = ["--seconds", f"{self._left:.2f}", "--seed", str(seed), "--skip", skip]
        return [*flags, "--only", self.options.only or "", *(["--nonsense"] if self.options.nonsense else [])]

    def _take(self, said: dict[str, Any]) -> None:
        self.counts.update(said.get("counts", {}))
        self.functions = max(self.functions, said.get("functions", 0))
        self._left -= said.get("spent", 0)
        if said.get("complaint"):
            self.findings.append({**said, "what": said["complaint"], "reproduces": True})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", type=Path, default=VENDOR.library)
    parser.add_argument("--nonsense", action="store_true", help="no right calls with changes; starts faster")
    parser.add_argument("--only", help="functions, separated by commas")
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds a call may take before it counts as a hang"
    )
    parser.add_argument("--skip", help=argparse.SUPPRESS)
    parser.add_argument("--replay", help="a recorded call (JSON with function and arguments)")
    parser.add_argument("--save", type=Path, help="a folder for the calls that were found")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child or options.replay:
        return child(options)
    fuzzing = Fuzzing(options)
    fuzzing.run()
    for number, found in enumerate(fuzzing.findings):
        alone = "" if found["reproduces"] else " (not when called alone: an earlier call may be to blame)"
        print(f"{found['function']} {found['what']}{alone}\n    {json.dumps(found['arguments'])}")
        if options.save:
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / f"{number:03d}-{found['function']}.json").write_text(json.dumps(found))
    made, names = sum(fuzzing.counts.values()), fuzzing.counts.most_common()
    answers = ", ".join(f"{n} {name}" for name, n in names)
    many = len(fuzzing.findings)
    print(
        f"{made} calls of {fuzzing.functions} functions in {options.seconds:.0f} s: {answers}; {many} findings"
    )
    return 1 if many else 0


if __name__ == "__main__":
    raise SystemExit(main())
