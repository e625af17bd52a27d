"""kill -9 at random moments of a capture run: is everything there that was reported as saved?

Each round forks a process that captures calls and logs rows as fast as it can and reports every finished file and every
flushed row through a pipe. The round ends with SIGKILL at a random moment. Then all that was reported must be there and
hold the right values, and whatever else lies under a final name must be whole. As a program of its own:
`python benchmarks/kill_capture.py --kills 200`; the runner's `--quick` makes 20 kills.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console

from op_tools.storage import CallInfo, CaptureError, CaptureStore, Limits, Log, load, read_log
from report import Case, Options, Report, write_json

KILLS, QUICK_KILLS = 200, 20
KINDS: tuple[Literal["files", "blobs"], ...] = ("files", "blobs")
# From a few files to some hundreds: the kill falls into opening, writing, renaming, appending and starting up.
LONGEST_LIFE = 0.3
SIZES = (3, 700, 20_000, 66_000, 130_000)
PARTS: tuple[Literal["input", "output"], ...] = ("input", "output")


@dataclass
class Outcome:
    """What was found after the kills of one kind of store."""

    kills: int = 0
    files: int = 0
    rows: int = 0
    unreported: int = 0  # complete, but killed before it could say so
    torn_tails: int = 0  # logs whose last row was cut: allowed, and dropped by the reader
    leftovers: int = 0  # unfinished files in .incoming: allowed, never under a final name
    broken: list[str] = field(default_factory=list)


def values(number: int, part: str) -> torch.Tensor:
    """The tensor of a call: recomputed by the judge, so that a mixed-up file cannot pass."""
    size = SIZES[number % len(SIZES)]
    return torch.arange(size, dtype=torch.float32) + (number // 3 if part == "input" else -number)


def capture_until_killed(root: Path, kind: Literal["files", "blobs"], pipe: int) -> None:
    """The victim. A line is written only after what it reports is complete."""
    limits = Limits(queue_bytes=4 << 20)
    store = CaptureStore(root, kind, limits, on_saved=lambda path: tell(pipe, f"file {path}"))
    log = Log(root, "rows")
    number = 0
    while True:
        call = CallInfo("torch.Tensor.add", number)
        for part in PARTS:
            store.put(call, part, (values(number, part), number), {"part": part})
        log.append({"n": number, "text": "x" * (number % 300)})
        if number % 7 == 0:
            log.flush()
            tell(pipe, f"rows {number}")
        number += 1


def tell(pipe: int, line: str) -> None:
    os.write(pipe, f"{line}\n".encode())


def reports_of(root: Path, kind: Literal["files", "blobs"], life: float) -> Iterator[str]:
    """Fork a victim, let it live for a while after its first word, kill it; what it said, complete lines only."""
    reader, writer = os.pipe()
    victim = os.fork()
    if victim == 0:
        os.close(reader)
        try:
            capture_until_killed(root, kind, writer)
        finally:
            os._exit(1)
    os.close(writer)
    said = bytearray()
    end = time.monotonic() + 30
    alive = True
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()) if alive else None)
        if not ready and alive:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            alive = False
            continue
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        if not said:
            end = time.monotonic() + life
        said += chunk
    os.close(reader)
    if alive:
        os.waitpid(victim, 0)
    yield from (line.decode() for line in bytes(said).split(b"\n")[:-1])


def judge(root: Path, lines: list[str], outcome: Outcome) -> None:
    """Hold what is on disk against what was said."""
    outcome.kills += 1
    reported = {line[5:] for line in lines if line.startswith("file ")}
    last_row = max((int(line[5:]) for line in lines if line.startswith("rows ")), default=-1)
    outcome.files += len(reported)
    outcome.rows += last_row + 1
    present = {str(path) for path in root.rglob("*.pth")}
    outcome.broken += [f"{path} was reported and is missing" for path in sorted(reported - present)]
    outcome.unreported += len(present - reported)
    for path in sorted(present):
        problem = problem_with(Path(path))
        if problem:
            outcome.broken.append(f"{path}: {problem}")
    outcome.leftovers += sum(1 for path in root.rglob(".incoming/*") if path.is_file())
    kept = -1
    for rows in root.glob("*.oplog"):
        contents = read_log(rows)
        outcome.torn_tails += bool(contents.dropped_bytes)
        if [row["n"] for row in contents.rows] != list(range(len(contents.rows))):
            outcome.broken.append(f"{rows}: rows are missing in between or mixed")
        kept = len(contents.rows) - 1
    if kept < last_row:
        outcome.broken.append(f"row {last_row} was reported and the log ends with {kept}")


def problem_with(path: Path) -> str:
    try:
        found = load(path)
        json.loads(Path(f"{path}.json").read_text())
        torch.load(path, weights_only=True)
    except (CaptureError, OSError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    tensor, number = found["args"]
    if not torch.equal(tensor, values(number, found["kwargs"]["part"])) or str(number) not in path.parts:
        return "holds other values than were captured"
    return ""


def kill_many(kind: Literal["files", "blobs"], kills: int, seed: int) -> Outcome:
    chance = random.Random(f"{seed} {kind}")
    outcome = Outcome()
    for _ in range(kills):
        root = Path(tempfile.mkdtemp(prefix="kill_capture_"))
        try:
            life = chance.random() ** 2 * LONGEST_LIFE
            judge(root, list(reports_of(root, kind, life)), outcome)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return outcome


def report(kills: int, seed: int) -> Report:
    """Half of the kills for each kind of store."""
    torch.set_num_threads(
        1
    )  # threads of OpenMP do not survive a fork, and their children wait for them forever
    cases = []
    for kind in KINDS:
        outcome = kill_many(kind, (kills + 1) // 2, seed)
        numbers = (
            outcome.kills,
            outcome.files,
            outcome.rows,
            outcome.unreported,
            outcome.torn_tails,
            outcome.leftovers,
            len(outcome.broken),
        )
        cells = [f"{number:,}" for number in numbers]
        raw = {"files": outcome.files, "rows": outcome.rows, "broken": outcome.broken, "kills": outcome.kills}
        cases.append(Case(kind, len(outcome.broken), cells, target=0, raw=raw))
    columns = ["kills", "files reported", "rows reported", "unreported", "torn tails", "leftovers", "broken"]
    return Report(f"kill -9 during capture, seed {seed}", columns, cases, {"seed": seed})


def measure(options: Options) -> Report:
    return report(QUICK_KILLS if options.quick else KILLS, random.SystemRandom().randrange(1 << 31))


def main(
    kills: Annotated[int, typer.Option(help="how many processes to kill")] = KILLS,
    seed: Annotated[int | None, typer.Option(help="of the moments; drawn where none is given")] = None,
    json: Annotated[Path | None, typer.Option(help="write every figure to this file")] = None,
) -> None:
    """Kill captures at random moments and look at what they left. Exit code 1: something reported was not there."""
    found = report(kills, random.SystemRandom().randrange(1 << 31) if seed is None else seed)
    found.print(Console(width=120))
    for case in found.cases:
        for line in case.raw["broken"][:20]:
            print(line)
    if json is not None:
        write_json(json, found.as_json("kill_capture"))
    raise typer.Exit(1 if found.missed else 0)


if __name__ == "__main__":
    typer.run(main)
