"""How many wrong generators the judge of random operators finds, and how often it accuses a right one.

Every variant of the corpus (`random_corpus`, `random_corpus_discrete`) is drawn and judged at each size; the seed is printed,
`--seed` repeats a run. `--level` judges at another level than usual: at 0.01 a calibrated judge accuses at most one right
generator in 100, which a short run can show where one in a million cannot be seen. Held-out faults only run with
`--held-out`. `python benchmarks/random_quality.py [--sizes 1000,100000] [--draws 20] [--json OUT]` needs torch alone.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from op_tools.verdict.distribution import LEVEL, judge_random
from random_corpus import CONTINUOUS, Subject, Variant
from random_corpus_discrete import DISCRETE

if TYPE_CHECKING:
    from report import Options, Report

SUBJECTS = [*CONTINUOUS, *DISCRETE]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
# At this size the targets hold.
TARGET_SIZE, TARGET_FOUND, TARGET_ALARMS = 100_000, 0.95, 1e-4


@dataclass
class Tally:
    """Judged and accused draws of one size."""

    size: int
    level: float = LEVEL
    right: int = 0
    alarms: int = 0
    wrong: int = 0
    found: int = 0
    seconds: float = 0.0
    told: list[str] = field(default_factory=list)
    missed: dict[str, int] = field(default_factory=dict)

    @property
    def found_share(self) -> float:
        return self.found / max(1, self.wrong)


def accused(subject: Subject, variant: Variant, seed: int, tally: Tally) -> str:
    """What the judge says against one draw; empty if nothing."""
    generator = torch.Generator().manual_seed(seed)
    args = subject.args(tally.size, generator)
    results = variant(tally.size, generator, args)
    started = time.perf_counter()
    verdicts = judge_random(subject.call, args, {}, results, level=tally.level)
    tally.seconds += time.perf_counter() - started
    return next((verdict.reason or "fails" for verdict in verdicts if verdict.status == "fail"), "")


def measured(
    size: int, seed: int, draws: int, right_draws: int, *, held_out: bool = False, level: float = LEVEL
) -> Tally:
    tally = Tally(size, level)
    for subject in SUBJECTS:
        for kind, variants, count in (
            ("right", subject.right, right_draws),
            ("wrong", subject.held_out if held_out else subject.wrong, draws),
        ):
            for name, variant in variants.items():
                for repeat in range(count):
                    # The same draws whatever else is in the corpus.
                    key = zlib.crc32(f"{subject.name}/{name}/{size}/{seed}/{repeat}".encode())
                    said = accused(subject, variant, key, tally)
                    label = f"{subject.name}: {name}"
                    if kind == "right":
                        tally.right += 1
                        tally.alarms += bool(said)
                        tally.told += [f"{label}: {said}"] if said else []
                    else:
                        tally.wrong += 1
                        tally.found += bool(said)
                        if not said:
                            tally.missed[label] = tally.missed.get(label, 0) + 1
    return tally


def lines(tallies: list[Tally], seed: int, verbose: bool) -> Iterator[str]:
    count = sum(len(subject.wrong) for subject in SUBJECTS)
    yield f"seed {seed}, torch {torch.__version__}: {len(SUBJECTS)} operators, {count} faults"
    yield f"{'elements':>10} {'right':>7} {'accused':>8} {'wrong':>7} {'found %':>8} {'ms a judgement':>15}"
    for tally in tallies:
        cost = 1e3 * tally.seconds / max(1, tally.right + tally.wrong)
        yield (
            f"{tally.size:>10} {tally.right:>7} {tally.alarms:>8} {tally.wrong:>7} "
            f"{100 * tally.found_share:>8.1f} {cost:>15.2f}"
        )
    for tally in tallies:
        yield from (f"ACCUSED at {tally.size}: {text}" for text in tally.told)
        if verbose:
            yield from (f"missed at {tally.size}: {name} ({n} times)" for name, n in tally.missed.items())


def as_json(tallies: list[Tally], seed: int) -> dict[str, Any]:
    return {"seed": seed, "torch": torch.__version__, "tallies": [vars(tally) for tally in tallies]}


def measure(options: Options) -> Report:
    """The same for `benchmarks/run.py`."""
    from report import Case, Report

    seed = secrets.randbelow(2**31)
    draws = 1 if options.quick else 5
    tally = measured(TARGET_SIZE, seed, draws, 5 * draws)
    for line in lines([tally], seed, True):
        options.say(line)
    rows = [
        Case("wrong generators missed %", 100 * (1 - tally.found_share), [f"{tally.wrong}"], 100 * (1 - TARGET_FOUND)),
        Case("right generators accused %", 100 * tally.alarms / tally.right, [f"{tally.right}"], 100 * TARGET_ALARMS),
    ]  # fmt: skip
    return Report("Random operators", ["judged"], rows, as_json([tally], seed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of elements")
    parser.add_argument("--draws", type=int, default=3, help="draws of each wrong variant and size")
    parser.add_argument(
        "--right-draws", type=int, help="draws of each right variant; default: 10 times --draws"
    )
    parser.add_argument("--level", type=float, default=LEVEL, help="share of right draws that may be accused")
    parser.add_argument("--held-out", action="store_true", help="the held-out faults instead of the others")
    parser.add_argument("--seed", type=int, help="repeat a run")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--verbose", action="store_true", help="print every fault that was missed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    right = options.right_draws if options.right_draws is not None else 10 * options.draws
    sizes = [int(size) for size in options.sizes.split(",")]
    tallies = [
        measured(size, seed, options.draws, right, held_out=options.held_out, level=options.level)
        for size in sizes
    ]
    print("\n".join(lines(tallies, seed, options.verbose)))
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(tallies, seed), indent=1) + "\n")


if __name__ == "__main__":
    main()
