"""SmolLM2-135M on the CPU, one thread: transformers on dlinfer's operators, and LMDeploy on them, beside plain transformers.

All figures are tokens per CPU second of `generate`, its own Python included. In each round every contestant runs once, in
changing order; ratios are taken within a round, so the drift of the machine cancels. LMDeploy runs in a process of its own.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from dlinfer.checkpoints import smollm2
from dlinfer.framework.transformers_ext import optimise
from dlinfer.interface import OPERATORS
from dlinfer.vendors.dispatch import served_by
from dlinfer_cpu_engine import BATCH, Engine, EngineError
from report import Case, Options, Report, Speedup

TEXT = Path(__file__).resolve().parent.parent / "examples" / "corpus.txt"
STEPS = 8
PROMPT = 32
LONG = 512
KINDS = ("transformers", "fp32", "int8", "int4")
Measure = Callable[[], float]


class Stopwatch(BaseStreamer):
    """CPU time at each token that `generate` gives out."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.process_time())

    def end(self) -> None:
        """Nothing is left to do."""


@dataclass(frozen=True)
class Subjects:
    """The same model four times, and a text for it."""

    models: dict[str, Any]
    text: Tensor

    def decode(self, kind: str) -> Measure:
        """CPU seconds for a token, in a text of a few dozen."""
        model, prompt = self.models[kind], self.text[:, :PROMPT]

        def run() -> float:
            watch = Stopwatch()
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=STEPS + 1,
                do_sample=False,
                streamer=watch,
            )
            # The first is the prompt, the second the token that reading it gave.
            return statistics.mean(b - a for a, b in pairwise(watch.times[1:]))

        return run

    def prefill(self, kind: str) -> Measure:
        """CPU seconds for a token of a long prompt."""
        model, prompt = self.models[kind], self.text[:, :LONG]

        def run() -> float:
            started = time.process_time()
            with torch.no_grad():
                model(prompt, use_cache=True, logits_to_keep=1)
            return (time.process_time() - started) / LONG

        return run

    def logits(self, kind: str) -> Tensor:
        """Of the whole text."""
        with torch.no_grad():
            return self.models[kind](self.text).logits[0]


def load(options: Options) -> Subjects:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    place = smollm2.folder()
    models = {}
    for kind in KINDS:
        options.say(f"loading {kind} ...")
        model = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        # Every run has the same length.
        model.generation_config.eos_token_id = None
        if kind != "transformers":
            optimise(model, None if kind == "fp32" else kind)  # type: ignore[arg-type]
        models[kind] = model
    ids = AutoTokenizer.from_pretrained(place)(TEXT.read_text(), return_tensors="pt").input_ids
    return Subjects(models, ids[:, : 2 * LONG])


def rounds(contestants: dict[str, Measure], count: int) -> dict[str, list[float]]:
    """Seconds of each, round by round; the order moves on by one each round. One round before counts nothing."""
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(count + 1):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            found = contestants[name]()
            if index:
                seconds[name].append(found)
    return seconds


def speedup(name: str, baseline: list[float], candidate: list[float], target: float | None = None) -> Speedup:
    """How many times as fast the candidate is."""
    ratios = [b / c for b, c in zip(baseline, candidate, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = statistics.median(baseline) / statistics.median(candidate)
    cells = [
        f"{1 / statistics.median(baseline):.1f}",
        f"{1 / statistics.median(candidate):.1f}",
        f"{medians:.2f}x",
        f"{statistics.median(ratios):.2f}x",
        f"{low:.2f} - {high:.2f}",
    ]
    raw = {
        "ratio_of_medians": medians,
        "quartiles": [low, high],
        "baseline_s": baseline,
        "candidate_s": candidate,
    }
    return Speedup(name, statistics.median(ratios), cells, target, raw)


def speeds(subjects: Subjects, options: Options) -> Iterator[Case]:
    options.say("decoding, one sequence ...")
    decode = rounds({kind: subjects.decode(kind) for kind in KINDS}, 3 if options.quick else 24)
    yield speedup("decode fp32 / transformers", decode["transformers"], decode["fp32"], 1.3)
    yield speedup("decode int8 / our fp32", decode["fp32"], decode["int8"], 1.8)
    yield speedup("decode int4 / our fp32", decode["fp32"], decode["int4"])
    options.say(f"reading {LONG} tokens ...")
    kinds = ("transformers", "fp32", "int8")
    prefill = rounds({kind: subjects.prefill(kind) for kind in kinds}, 2 if options.quick else 8)
    yield speedup(f"prefill {LONG} fp32 / transformers", prefill["transformers"], prefill["fp32"], 1.0)
    yield speedup(f"prefill {LONG} int8 / transformers", prefill["transformers"], prefill["int8"])


def engine(subjects: Subjects, options: Options) -> Iterator[Case]:
    """LMDeploy with a batch beside transformers with one sequence."""
    options.say(f"LMDeploy, {BATCH} sequences ...")
    with Engine() as served:
        both = {"transformers": subjects.decode("transformers"), "LMDeploy": served.seconds_per_token}
        found = rounds(both, 2 if options.quick else 6)
    name = f"LMDeploy batch {BATCH} / transformers"
    yield speedup(name, found["transformers"], found["LMDeploy"], 5.0)


def quality(subjects: Subjects) -> dict[str, dict[str, float]]:
    """What rounding the weights does: perplexity of a text, and how often the likeliest token is that of fp32."""
    exact = subjects.logits("transformers")
    found = {}
    for kind in KINDS:
        logits = subjects.logits(kind)
        loss = torch.nn.functional.cross_entropy(logits[:-1], subjects.text[0, 1:])
        found[kind] = {
            "perplexity": round(math.exp(loss.item()), 4),
            "same_token": round((logits.argmax(-1) == exact.argmax(-1)).float().mean().item(), 4),
        }
    return found


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    subjects = load(options)
    cases = list(speeds(subjects, options))
    left_out = None
    try:
        cases += engine(subjects, options)
    except EngineError as error:
        left_out = str(error)
        options.say(f"LMDeploy is left out: {error}")
    options.say("what rounding the weights does ...")
    judged = quality(subjects)
    for kind, figures in judged.items():
        options.say(
            f"{kind}: perplexity {figures['perplexity']:.3f}, likeliest token as fp32 {figures['same_token']:.1%}"
        )
    vendors = {name: served_by(name, "cpu").name for name in OPERATORS}
    notes = {
        "quick": options.quick,
        "quality": judged,
        "vendors": vendors,
        "lmdeploy": left_out or "measured",
    }
    columns = ["before", "dlinfer", "of medians", "of rounds", "middle half"]
    title = "SmolLM2-135M, tokens per CPU second of one thread, batch 1 unless said; speed-up is the median of rounds"
    return Report(title, columns, cases, notes)


if __name__ == "__main__":
    import run

    run.main(["dlinfer_cpu", *sys.argv[1:]])
