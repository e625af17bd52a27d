"""The verdict on a device that computes right: whatever it calls wrong there is a false alarm.

Thirteen models (`examples/models/all_models.py`: two training steps and a generation) run under OpAutoCompare with the CPU as
the reference, in float32 and under autocast in bfloat16, and the corpus of `verdict_detection.py` with the device's own results
as the right ones. Every model and every part of the corpus is a process of its own. The figures are written again after
each, so that a run that is cut off leaves those it has.

    python benchmarks/verdict_on_device.py --device cuda --jobs 15 --seconds 300 --json OUT --keep FOLDER
    python benchmarks/verdict_on_device.py --device cuda --read FOLDER --json OUT        the same figures from what was kept
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from models_table import SCRIPT, card
from op_tools.storage.log_reader import find_logs
from op_tools.storage.views import rows_of
from report import Case, Report, write_json
from verdict_detection import GOOD, HELD_OUT, LABELS
from verdict_quality import wilson

sys.path.insert(0, str(SCRIPT.parent))
from all_models import MODELS

DTYPES = {"float32": (), "bfloat16": ("--bf16",)}
DEVICES = {
    # TF32 is right too where it is allowed, but a label is what it gets.
    "cuda": {"DITORCH_DEVICE": "cuda", "NVIDIA_TF32_OVERRIDE": "0"},
    "dipu": {"DITORCH_DEVICE": "dipu", "DIPU_HOST_NUMERICS": "reordered"},
}
# Of the values of the trainings; and of the corpus, in percent.
MOST_FAILURES, MOST_ALARMS, MOST_LABELS = 0, 0.2, 1.0
JUDGED = ("fail", *LABELS, *GOOD)


@dataclass
class Outcome:
    """What one process found."""

    group: str
    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    problem: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """One process: its command, and how its result is read."""

    group: str
    name: str
    command: tuple[str, ...]
    settings: dict[str, str]
    folder: Path

    def run(self, until: float) -> Outcome:
        started = time.monotonic()
        outcome = Outcome(self.group, self.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.settings,
        }
        try:
            done = subprocess.run(
                self.command, env=environment, capture_output=True, text=True, check=False,
                timeout=max(1.0, until - started),
            )  # fmt: skip
            if done.returncode:
                outcome.problem = (
                    f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
                )
        except subprocess.TimeoutExpired:
            outcome.problem = "not finished in time"
        outcome.seconds = round(time.monotonic() - started, 1)
        self.read(outcome)
        return outcome

    def read(self, outcome: Outcome) -> None:
        """Count what the process has left in its folder."""
        if self.group == "corpus":
            for status, finding in corpus_findings(self.folder / "corpus.json"):
                outcome.statuses.update(status)
                outcome.findings += finding
        else:
            for row in rows(self.folder):
                outcome.statuses[row["verdict"]] += 1
                if row["verdict"] not in (*GOOD, "skipped"):
                    text = f"{row['verdict']} {row['name']} {row['reason']}"
                    if row["verdict"] == "fail":
                        text += f" ({row['module'] or row['call_site']})"
                    outcome.findings.append(f"{self.group} {self.name}: {text}")
        if not outcome.statuses and not outcome.problem:
            outcome.problem = "judged nothing"


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """What OpAutoCompare has written there; of a process that was ended, what it got to."""
    logs = find_logs(folder / "op_autocompare_result")
    yield from (row for row in rows_of(logs) if row.get("verdict"))


def corpus_findings(path: Path) -> Iterator[tuple[Counter[str], list[str]]]:
    if not path.exists():
        return
    for tally in json.loads(path.read_text())["found"]["right"].values():
        yield Counter(tally["statuses"]), [f"corpus {text}" for text in tally["unexpected"]]


def tasks(
    device: str, seeds: Sequence[int], parts: int, folder: Path, models: Sequence[str]
) -> Iterator[Task]:
    for name in models:
        for dtype, options in DTYPES.items():
            here = folder / dtype / name
            run = ("-m", "ditorch", "run", "--tool", "autocompare", "--results", str(here), str(SCRIPT), name)
            yield Task(dtype, name, (sys.executable, *run, *options), DEVICES[device], here)
    corpus = str(Path(__file__).resolve().parent / "verdict_detection.py")
    for seed in seeds:
        for part in range(parts):
            here = folder / "corpus" / f"{seed}-{part}"
            options = ("--device", device, "--seed", str(seed), "--part", f"{part}/{parts}")
            command = (sys.executable, corpus, *options, "--json", str(here / "corpus.json"))
            yield Task("corpus", f"seed {seed}, part {part}", command, {}, here)


def counted(texts: Iterable[str]) -> list[str]:
    """Each text once; labels of a model's layers are alike."""
    return [
        f"{text} ({times} times)" if times > 1 else text for text, times in sorted(Counter(texts).items())
    ]


def as_report(device: str, outcomes: Sequence[Outcome], wanted: Counter[str]) -> Report:
    cases = []
    for group in (*DTYPES, "corpus"):
        of_group = [outcome for outcome in outcomes if outcome.group == group]
        statuses: Counter[str] = Counter()
        for outcome in of_group:
            statuses.update(outcome.statuses)
        judged = sum(statuses[status] for status in JUDGED)
        wrong, labelled = statuses["fail"], sum(statuses[label] for label in LABELS)
        raw = {
            "judged": judged,
            "statuses": dict(statuses),
            "processes": len(of_group),
            "wanted": wanted[group],
            "findings": counted(text for outcome in of_group for text in outcome.findings),
            "problems": {outcome.name: outcome.problem for outcome in of_group if outcome.problem},
            "seconds": {outcome.name: outcome.seconds for outcome in of_group},
        }
        done = [f"{judged:,}", f"{sum(not outcome.problem for outcome in of_group)} of {wanted[group]}"]
        if group == "corpus":
            upper = f"{wrong} (at most {100 * wilson(wrong, judged):.2f} %)"
            cases.append(
                Case("corpus, accused, %", 100 * wrong / max(1, judged), [*done, upper], MOST_ALARMS, raw)
            )
            cases.append(
                Case("corpus, labelled, %", 100 * labelled / max(1, judged), [*done, str(labelled)], None)
            )
        else:
            cases.append(
                Case(
                    f"models, {group}, called wrong",
                    wrong,
                    [*done, f"{labelled} labelled"],
                    MOST_FAILURES,
                    raw,
                )
            )
    unfinished = wanted.total() - sum(not outcome.problem for outcome in outcomes)
    cases.append(Case("processes without a whole result", unfinished, ["", f"of {wanted.total()}", ""], 0))
    notes = {"device": device, "card": card(device), "settings": DEVICES[device]}
    return Report("The verdict on a right device", ["values", "processes", ""], cases, notes)


def run(options: argparse.Namespace, folder: Path) -> Report:
    until = time.monotonic() + options.seconds
    wanted_tasks = list(tasks(options.device, options.seeds, options.parts, folder, options.models))
    wanted = Counter(task.group for task in wanted_tasks)
    outcomes: list[Outcome] = []
    if options.read is not None:
        for task in wanted_tasks:
            outcomes.append(Outcome(task.group, task.name))
            task.read(outcomes[-1])
        return as_report(options.device, outcomes, wanted)
    report = as_report(options.device, outcomes, wanted)
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(task.run, until) for task in wanted_tasks]):
            outcome = future.result()
            outcomes.append(outcome)
            problem = f" PROBLEM {outcome.problem}" if outcome.problem else ""
            print(
                f"{outcome.group} {outcome.name}: {dict(outcome.statuses)} {outcome.seconds} s{problem}",
                flush=True,
            )
            report = as_report(options.device, outcomes, wanted)
            if options.json is not None:
                write_json(options.json, report.as_json("verdict_on_device"))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="dipu", help="the device whose results are right"
    )
    parser.add_argument(
        "--models", nargs="*", choices=MODELS, default=MODELS, metavar="MODEL", help="all without it"
    )
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[HELD_OUT], help="of the corpus; none: without it"
    )
    parser.add_argument("--parts", type=int, default=15, help="processes that share the corpus of one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=3600, help="what is not done then is ended")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--keep", type=Path, help="leave rows and failing calls in this folder")
    parser.add_argument("--read", type=Path, help="run nothing: read what --keep left in this folder")
    options = parser.parse_args()
    if options.read is not None and not options.read.is_dir():
        parser.error(f"--read {options.read}: no such folder; give the one that a run was given as --keep")
    with tempfile.TemporaryDirectory() as temporary:
        report = run(options, options.read or options.keep or Path(temporary))
    if options.json is not None:
        write_json(options.json, report.as_json("verdict_on_device"))
    report.print(Console(width=120))
    for case in report.cases:
        for text in case.raw.get("findings", [])[:40]:
            print(text)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
