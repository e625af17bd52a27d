"""The table of docs/status.md, made from the figures in benchmarks/results.

    python benchmarks/status_table.py            rewrites it
    python benchmarks/status_table.py --check    fails when it differs

A row names a stored figure and the bound that its target is. The target itself, the revision and, for figures that were
entered by hand (recorded.json), the bound and the command are stored beside the figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "status.md"
BEGIN = "<!-- figures:begin (made by benchmarks/status_table.py) -->"
END = "<!-- figures:end -->"
MET = {"<=": lambda x, t: x <= t, ">=": lambda x, t: x >= t, "=": lambda x, t: x == t}

Stored = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure. `figure` is the name of a case, or a function that reads a number out of the whole file."""

    package: str
    what: str
    file: str
    figure: str | Callable[[Stored], float]
    bound: str = "<="
    unit: str = ""
    target: float | None = None
    of: Callable[[Stored], int] | None = None
    command: str = ""


@cache
def stored(file: str) -> Stored:
    return json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))


def case(content: Stored, name: str) -> Stored:
    for found in content["cases"]:
        if found["name"] == name:
            return found
    raise KeyError(
        f"{content['benchmark']} has no case {name!r}; it has {[c['name'] for c in content['cases']]}"
    )


def number(value: float, unit: str = "") -> str:
    """Counts in full, measured values to three digits."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:#.3g}".removesuffix(".")
    return f"{text} {unit}".strip()


def cells(row: Row) -> list[str]:
    content = stored(row.file)
    entry: Stored = {}
    if isinstance(row.figure, str):
        entry = case(content, row.figure)
    value = row.figure(content) if callable(row.figure) else entry["figure"]
    of = row.of(content) if row.of else entry.get("of")
    unit = entry.get("unit") or row.unit
    bound = entry.get("bound") or row.bound
    target = row.target if row.target is not None else entry.get("target")
    environment = content.get("environment", {})
    revision = entry.get("revision") or environment.get("revision", "")
    command = row.command or entry.get("command") or f"python benchmarks/run.py {content['benchmark']}"
    measured = number(value, unit) + (f" of {of:,}" if of else "")
    met = "" if target is None else ("yes" if MET[bound](value, target) else "**no**")
    wanted = "" if target is None else f"{bound} {target:,g} {unit}".strip()
    return [f"`{row.package}`", row.what, wanted, measured, met, revision[:7], f"`{command}`"]


def pairs(name: str) -> Callable[[Stored], int]:
    """How many pairs of operator and dtype one check of the OpInfo sweep ran."""

    def count(content: Stored) -> int:
        raw = case(content, name)["raw"]
        return sum(raw.get(status, 0) for status in ("passed", "gap", "refusal", "artefact"))

    return count


def flagged(kind: str) -> Callable[[Stored], float]:
    return lambda content: content["tallies"][kind]["flagged"]["conditioned noise (this)"]


def compared(kind: str) -> Callable[[Stored], int]:
    return lambda content: content["tallies"][kind]["compared"]


def share(kind: str) -> Callable[[Stored], float]:
    return lambda content: 100 * flagged(kind)(content) / compared(kind)(content)


def generators(what: str, of: str, size: int = 100_000) -> Callable[[Stored], float]:
    """Percent of the generators that `random_quality` drew from at one size."""

    def percent(content: Stored) -> float:
        tally = next(tally for tally in content["tallies"] if tally["size"] == size)
        return float(100 * tally[what] / tally[of])

    return percent


def worst(begin: str, end: str) -> Callable[[Stored], float]:
    """The largest figure of the cases whose names begin and end so."""

    def largest(content: Stored) -> float:
        return max(
            c["figure"] for c in content["cases"] if c["name"].startswith(begin) and c["name"].endswith(end)
        )

    return largest


def total(content: Stored) -> float:
    """The figures of all cases together."""
    return sum(c["figure"] for c in content["cases"])


def observers(content: Stored) -> float:
    """The figures of all cases but the tool that replaces what runs."""
    return sum(c["figure"] for c in content["cases"] if c["name"] != "fallback")


def models(side: str) -> Callable[[Stored], int]:
    """How many models met every demand on one side."""
    return lambda content: sum(c["raw"]["side"] == side and not c["figure"] for c in content["cases"])


def of_bandwidth(*names: str) -> Callable[[Stored], float]:
    return lambda content: 100 * min(case(content, name)["raw"]["of_bandwidth"] for name in names)


def faster(name: str) -> Callable[[Stored], float]:
    return lambda content: case(content, name)["raw"]["times_faster"]


def judged(name: str) -> Callable[[Stored], int]:
    """Of how many values a figure of the verdict on a device is."""
    return lambda content: case(content, name)["raw"]["judged"]


def recorded(package: str, name: str, what: str = "") -> Row:
    return Row(package, what or name, "recorded", name)


def against_inductor() -> list[Row]:
    """Every figure of the benchmark `dicp_cpu` that has a target."""
    cases = [found for found in stored("dicp_cpu")["cases"] if found["target"] is not None]
    return [Row("dicp", f"hostgraph over Inductor, {c['name']}", "dicp_cpu", c["name"]) for c in cases]


OPINFO, TOOLS, CPU, GPU = "opinfo_full", "op_tools_overhead", "dlinfer_cpu", "dlinfer_gpu_h200"
ALWAYS, ALLOCATOR = "always_on", "allocator"
H200 = "python benchmarks/run.py dlinfer_gpu --device cuda"
ON_H200, ON_DEVICE = "verdict_on_device_h200", "python benchmarks/verdict_on_device.py --device cuda"
VERDICT = "python benchmarks/verdict_quality.py"
RANDOM = "python benchmarks/random_quality.py"
BLOCKS_OF_64 = [
    f"decode attention 32 x {length}, 32/8 x {size}, blocks of 64"
    for length, size in ((2048, 64), (4096, 64), (8192, 64), (2048, 128), (8192, 128))
]

ROWS = [
    Row("ditorch", "mapping on, time over off: `x + y`", "shim_overhead", "x + y, 8 elements"),
    Row("ditorch", "mapping on, time over off: train step, d = 64", "shim_overhead", "train step d=64"),
    Row("ditorch", "mapping on, time over off: train step, d = 256", "shim_overhead", "train step d=256"),
    Row("ditorch", "`import ditorch` after torch", "shim_overhead", "import ditorch, seconds", unit="s"),
    Row("ditorch", "`ditorch run`, train step over plain Python", "run_overhead", "CPU, against python script.py"),
    Row("ditorch", "`ditorch run`, the same on dipu", "run_overhead", "dipu, against import ditorch"),
    Row("ditorch", "models on dipu that meet every demand", "models_dipu", models("dipu"), "=", target=13,
        command="python benchmarks/models_table.py"),
    Row("ditorch", "models on dipu with reordered sums", "models_dipu", models("reordered"), "=", target=13,
        command="python benchmarks/models_table.py"),
    Row("ditorch", "models on an H200, with ditorch as without", "models_cuda", models("cuda"), "=", target=13,
        command="python benchmarks/models_table.py --device cuda"),
    recorded("ditorch", "third-party scripts that run unchanged on dipu"),
    recorded("ditorch", "names of torch.cuda whose effect or refusal is checked"),
    recorded("ditorch", "OpInfo on an H200, torch 2.11: forward pairs that pass"),
    recorded("ditorch", "OpInfo on an H200, torch 2.11: gradients that pass"),
    recorded("ditorch", "cases of PyTorch 2.6's own test files that pass on dipu"),
    Row("torch_dipu", "time over the CPU's: `add` of 8 elements", "device_overhead", "add, 8 elements"),
    Row("torch_dipu", "time over the CPU's: `linear` 256 x 256", "device_overhead", "linear 256 x 256, batch 256"),
    Row("torch_dipu", "time over the CPU's: train step, d = 64", "device_overhead", "train step d=64"),
    Row("torch_dipu", "time over the CPU's: train step, d = 256", "device_overhead", "train step d=256"),
    Row("torch_dipu", "OpInfo, gaps: forward", OPINFO, "forward", of=pairs("forward")),
    Row("torch_dipu", "OpInfo, gaps: gradients", OPINFO, "gradient", of=pairs("gradient")),
    Row("torch_dipu", "OpInfo, gaps: `out=`", OPINFO, "out", of=pairs("out")),
    Row("torch_dipu", "OpInfo, gaps: in-place", OPINFO, "inplace", of=pairs("inplace")),
    Row("torch_dipu", "OpInfo, gaps: strided inputs", OPINFO, "noncontiguous", of=pairs("noncontiguous")),
    Row("torch_dipu", "OpInfo, gaps: inputs the CPU refuses", OPINFO, "errors", "=", target=0, of=pairs("errors")),
    recorded("torch_dipu", "tests of the device that fail with torch 2.11 and Python 3.12"),
    Row("torch_dipu", "memory, time over the CPU allocator's: 64 KiB", ALLOCATOR, "allocate and free 64 KiB"),
    Row("torch_dipu", "memory, time over the CPU allocator's: 4 MiB", ALLOCATOR, "allocate and free 4 MiB"),
    Row("torch_dipu", "memory reserved over held: 400 growing temporaries up to 15 MB", ALLOCATOR,
        "400 growing temporaries, largest 15 MB"),
    Row("torch_dipu", "peak of the demo's GPT over that of torch.cuda's caching rule", ALLOCATOR, "peak of the demo's GPT"),
    Row("torch_dipu", "the same of a wider GPT", ALLOCATOR, "peak of a wider GPT"),
    Row("torch_dipu", "device memory after 20,000 steps over before", ALLOCATOR, "device memory reserved after 20,000 steps"),
    Row("torch_dipu", "host memory after 20,000 steps over before", ALLOCATOR, "host memory after 20,000 steps"),
    recorded("op_tools", "trainings of 20 steps that a tool changed by one bit"),
    recorded("op_tools", "false alarms in train steps of 3 models, plain and reordered sums, 3 dtypes"),
    Row("op_tools", "verdict, CPU: false alarms", "verdict_quality_cpu", share("correct"), unit="%", target=0.5,
        command=VERDICT),
    Row("op_tools", "verdict, CPU: wrong results found", "verdict_quality_cpu", share("wrong"), ">=", "%", 95,
        command=VERDICT),
    Row("op_tools", "verdict, H200: false alarms", "verdict_quality_h200", share("correct"), unit="%", target=0.5,
        command=f"{VERDICT} --device cuda"),
    Row("op_tools", "verdict, H200, 13 models in fp32: right values called wrong", ON_H200, "models, float32, called wrong",
        "=", of=judged("models, float32, called wrong"), command=ON_DEVICE),
    Row("op_tools", "verdict, H200, 13 models in bf16: right values called wrong", ON_H200, "models, bfloat16, called wrong",
        "=", of=judged("models, bfloat16, called wrong"), command=ON_DEVICE),
    Row("op_tools", "verdict, H200, held-out corpus: right results accused", ON_H200, "corpus, accused, %", unit="%",
        command=ON_DEVICE),
    Row("op_tools", "verdict, H200, held-out corpus: right results labelled", ON_H200, "corpus, labelled, %", unit="%",
        command=ON_DEVICE),
    recorded("op_tools", "verdict, two held-out seeds: right results accused"),
    recorded("op_tools", "verdict, two held-out seeds: right results labelled"),
    recorded("op_tools", "verdict, two held-out seeds: results wrong by more than 2 ulp that fail"),
    recorded("op_tools", "verdict, two held-out seeds: the same, beyond four times what right variants scatter by"),
    Row("op_tools", "wrong generators of random numbers found, 100,000 elements", "random_quality",
        generators("found", "wrong"), ">=", "%", 95, command=RANDOM),
    Row("op_tools", "right generators of random numbers accused, 440 draws of 100,000 elements", "random_quality",
        generators("alarms", "right"), unit="%", target=0.01, command=RANDOM),
    Row("op_tools", "captures killed at random moments that lost a saved file or row", "kill_capture", total, "=", target=0,
        command="python benchmarks/kill_capture.py --kills 200"),
    Row("op_tools", "entries of OpInfo whose kernels differ with an observing tool", "kernel_lists", worst("", ""), "=", target=0,
        command="python benchmarks/kernel_lists.py"),
    Row("op_tools", "trainings of 28 whose bits an observing tool changed", "noninterference", observers, "=", target=0,
        command="python benchmarks/noninterference.py"),
    Row("op_tools", "wrong kernels of backward of 60 that are not found", "wrong_backward", "wrong kernels in backward", "=",
        command="python benchmarks/wrong_backward.py"),
    Row("op_tools", "idle, the worst of all tools and levels, over without: `x + y`", TOOLS, worst("idle, ", "x + y"),
        target=1.15),
    Row("op_tools", "idle, the worst of all tools and levels, over without: train step", TOOLS, worst("idle, ", "train step"),
        target=1.01),
    Row("op_tools", "nothing to do at API level, list `.*`, over without: `x + y`", TOOLS,
        "nothing to do, API level, x + y"),
    Row("op_tools", "train step over without: time measure", TOOLS, "time measure"),
    Row("op_tools", "train step over without: observe", TOOLS, "observe"),
    Row("op_tools", "train step over without: dtype cast", TOOLS, "dtype cast, nothing to cast"),
    Row("op_tools", "train step over without: overflow check", TOOLS, "overflow check"),
    Row("op_tools", "train step over without: autocompare", TOOLS, "autocompare, every call"),
    Row("op_tools", "train step over without: autocompare, reordered", TOOLS, "autocompare, every call, reordered"),
    Row("op_tools", "train step over without: autocompare, sampled, d = 256", TOOLS, "autocompare, sampled, d=256"),
    Row("op_tools", "train step over without: autocompare, sampled, d = 64", TOOLS, "autocompare, sampled, d=64"),
    Row("op_tools", "train step over without: OpSentinel, d = 256", TOOLS, "sentinel, d=256"),
    Row("op_tools", "train step over without: OpSentinel, d = 64", TOOLS, "sentinel, d=64"),
    Row("op_tools", "always on, 2,000 steps of the GPT demo, over without", ALWAYS, "2000 steps"),
    Row("op_tools", "always on: steps until the kernel that turned wrong at step 1,000 is named", ALWAYS,
        "steps until gelu is named"),
    Row("op_tools", "always on: right kernels accused", ALWAYS, "right kernels accused", "="),
    Row("op_tools", "peak memory over without: autocompare", TOOLS, "autocompare, every call, peak memory"),
    Row("op_tools", "train step over without: capture, blobs", TOOLS, "capture, blobs, 50 steps with the writer"),
    Row("op_tools", "train step over without: capture, files", TOOLS, "capture, files, 50 steps with the writer"),
    Row("op_tools", "stored in a step: capture, blobs", TOOLS, "capture, blobs, MB a step", unit="MB"),
    Row("op_tools", "stored in a step: capture, files", TOOLS, "capture, files, MB a step", unit="MB"),
    recorded("op_tools", "diff of a small llama, plain against reordered sums: calls reported"),
    recorded("op_tools", "diff: wrong kernels that are the first reported call, ATen level"),
    recorded("op_tools", "diff: wrong kernels that are the first reported call, API level"),
    recorded("op_tools", "bisect: wrong kernels of which exactly the operator was named"),
    recorded("op_tools", "bisect: runs of the script"),
    recorded("op_tools", "reproduce: files that fail with the wrong kernel and pass without"),
    recorded("op_tools", "reproduce: size of the largest file"),
    Row("op_tools", "report of 100,000 rows: writing", "report_size", "write, s", unit="s"),
    Row("op_tools", "report of 100,000 rows: size", "report_size", "size, MB", unit="MB"),
    Row("op_tools", "report of 100,000 rows: first screen", "report_size", "first screen, s", unit="s"),
    Row("op_tools", "report of 100,000 rows: all rows ready", "report_size", "all rows ready, s", unit="s"),
    Row("op_tools", "report of 1,000 ranks, 10 million rows: time", "rank_logs", "report, s", unit="s"),
    Row("op_tools", "report of 1,000 ranks: memory of all processes", "rank_logs", "memory of all processes, GB", unit="GB"),
    Row("op_tools", "report of 1,000 ranks: size", "rank_logs", "page, MB", unit="MB"),
    Row("op_tools", "report of 1,000 ranks: facts that the page lacks", "rank_logs", "facts that the page lacks", "="),
    Row("op_tools", "report of 1,000 ranks: first screen", "rank_logs", "first screen, s", unit="s"),
    recorded("diopi", "functions whose C prototype agrees with the published list"),
    recorded("diopi", "conformance of the simulated chip: cases"),
    recorded("diopi", "conformance of the simulated chip: failures"),
    recorded("diopi", "conformance of the simulated chip: cases outside PyTorch's database"),
    recorded("diopi", "conformance of the simulated chip: operators"),
    recorded("diopi", "conformance of the simulated chip, 2 cores"),
    recorded("diopi", "conformance of the simulated chip, quick form, 2 cores"),
    recorded("diopi", "conformance of the simulated chip with torch 2.11 and Python 3.12: failures"),
    Row("diopi", "mistakes of 40 that the suite does not find", "diopi_sensitivity", "mistakes missed"),
    Row("diopi", "alarms at operators without a mistake", "diopi_sensitivity", "false alarms"),
    recorded("diopi", "fuzz of 60 s: crashes, hangs, stray writes"),
    recorded("diopi", "operators with callers typed in C and known values"),
    recorded("diopi", "operators of a training step that run by DIOPI, llama"),
    recorded("diopi", "operators of a training step that run by DIOPI, bert"),
    recorded("diopi", "operators of a training step that run by DIOPI, resnet50"),
    *against_inductor(),
    recorded("dlinfer", "conformance of ref: cases that pass"),
    recorded("dlinfer", "conformance of cpp: cases that pass, at three levels of instructions"),
    recorded("dlinfer", "conformance of triton on an H200: cases that pass"),
    recorded("dlinfer", "conformance of triton, interpreted on the CPU: cases that pass"),
    recorded("dlinfer", "wrong arguments that crash, give a silent result or an error without a name"),
    recorded("dlinfer", "random legal calls of cpp that differ from ref"),
    recorded("dlinfer", "LMDeploy, SmolLM2: prompts whose greedy fp32 tokens differ from transformers'"),
    recorded("dlinfer", "LMDeploy, models with random weights whose tokens differ from transformers'"),
    recorded("dlinfer", "LMDeploy, quantised models whose tokens differ from the same arithmetic in transformers"),
    recorded("dlinfer", "LMDeploy's server: clients at once that are all answered"),
    recorded("dlinfer", "SmolLM2 with weights of 8 bits: parameters and buffers"),
    Row("dlinfer", "CPU, decode, batch 1, speed over sdpa", CPU, "decode fp32 / transformers", ">="),
    Row("dlinfer", "CPU, prefill of 512, speed over sdpa", CPU, "prefill 512 fp32 / transformers", ">="),
    Row("dlinfer", "CPU, decode, weights of 8 bits over fp32", CPU, "decode int8 / our fp32", ">="),
    Row("dlinfer", "CPU, LMDeploy at batch 8 over sdpa at batch 1", CPU, "LMDeploy batch 8 / transformers", ">="),
    Row("dlinfer", "H200, llama of 1B, CUDA graph, speed over sdpa", GPU, faster("llama 1B: dlinfer's operators, graph"),
        ">=", target=3, command=H200),
    Row("dlinfer", "H200, llama of 1B, eager, speed over sdpa", GPU, faster("llama 1B: dlinfer's operators, eager"),
        command=H200),
    Row("dlinfer", "H200, paged decode attention, bandwidth, blocks of 64", GPU, of_bandwidth(*BLOCKS_OF_64), ">=", "%",
        80, command=H200),
    Row("dlinfer", "H200, paged decode attention, bandwidth, blocks of 16", GPU,
        of_bandwidth("decode attention 32 x 2048, 32/8 x 64, blocks of 16"), ">=", "%", command=H200),
    *(Row("dicp", f"operator database{what}, `hostgraph`, {dtype}: samples not right", file, dtype, unit="%",
          command=f"python benchmarks/dicp_opinfo.py --samples 2{option}")
      for what, file, option in (("", "dicp_opinfo", ""), (", gradients", "dicp_opinfo_gradients", " --gradients"))
      for dtype in ("float32", "bfloat16", "float16")),
    recorded("project", "C++ build, 2 cores"),
    recorded("project", "everything CI runs, 2 cores, packages installed before"),
    recorded("project", "everything CI runs, 2 cores, new environment"),
]  # fmt: skip


def table() -> str:
    head = ["Package", "Figure", "Target", "Measured", "Met", "Revision", "Command"]
    rows = [head, ["---"] * len(head), *map(cells, ROWS)]
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows) + "\n"


def page(text: str) -> str:
    """The page with the table in its place between the two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END} between which the table belongs")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 when the page differs"
    )
    check: bool = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if check and made != text:
        print(
            "docs/status.md differs from benchmarks/results: run `python benchmarks/status_table.py`.",
            file=sys.stderr,
        )
        return 1
    if not check:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
