"""Small runs for the report: logs with rows whose counts, first failure and times are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from op_tools.storage.log import Log

SITE = "/home/someone/model.py:{line} forward: y = {operator}(x)"
# What a page must show as text and never run, and what would push a table apart.
HOSTILE = {
    "script": "</script><script>window.hacked=1</script>",
    "comment": "<!--<script>",
    "image": '"><img src=x onerror="window.hacked=1">',
    "quotes": """it's "quoted" \\ `back` ${window.hacked=1} {{summary}}""",
    "rtl": "\u202egnp.tfel-ot-thgir\u202c עברית العربية",
    "emoji": "\U0001f9ee\U0001f468\u200d\U0001f469\u200d\U0001f467 \U00010348",
    "control": "bell\x07 escape\x1b[31m null\x00",
    "long": "x" * 10_000,
}


def write(
    folder: Path, log: str, rows: list[dict[str, Any]], rank: int = 0, world_size: int = 1, **more: Any
) -> Path:
    """Write a log as a tool does."""
    with Log(folder, log, rank=rank, world_size=world_size) as opened:
        opened.extend([{"rank": rank, "world_size": world_size, **row, **more} for row in rows])
        return opened.path


def row(number: int, operator: str = "torch.add", **values: Any) -> dict[str, Any]:
    """A row as all tools have it."""
    return {
        "forward_id": number, "name": operator, "call_site": SITE.format(line=number % 50, operator=operator.partition(" ")[0]),
        "module": f"Model.layer{number % 3}", "step": number // 100, "thread": 1, "level": "api", "phase": "forward",
        "forward_name": "", **values,
    }  # fmt: skip


def compared(
    number: int, operator: str = "torch.add", verdict: str = "same", **values: Any
) -> dict[str, Any]:
    """A row of OpAutoCompare."""
    wrong = verdict == "fail"
    return row(
        number, f"{operator} output", **{
            "verdict": verdict, "reason": f"{number} of 4096 elements are off" if wrong else "", "allclose": not wrong,
            "error_over_bound": 10.0 + number if wrong else float("nan"), "max_abs_diff": 0.5 if wrong else 0.0,
            "max_relative_diff": 0.25 if wrong else 0.0, "cosine_similarity": 1.0, "atol": 1e-5, "rtol": 1e-5,
            "error_info": "", **values,
        },
    )  # fmt: skip


def timed(
    number: int, operator: str = "torch.add", forward: float = 1.0, backward: float = 2.0
) -> dict[str, Any]:
    """A row of OpTimeMeasure."""
    return row(
        number, operator, forward_elasped=forward, backward_elasped=backward, unit="ms",
        input="(float32[2, 3]@dipu:0)", output="float32[2, 3]@dipu:0", grad_inputs=[], grad_outputs=[],
    )  # fmt: skip


def write_run(folder: Path) -> Path:
    """350 compared rows (3 wrong, in steps 1 and 2; 2 of lower precision), 120 timed ones, one NaN, memory."""
    verdicts = {
        130: "fail",
        131: "fail",
        250: "fail",
        10: "lower_precision",
        20: "lower_precision",
        30: "skipped",
    }
    rows = []
    for number in range(350):
        operator = (
            "torch.nn.functional.silu"
            if number in (130, 250)
            else "torch.mm"
            if number == 131
            else "torch.add"
        )
        rows.append(compared(number, operator, verdicts.get(number, "pass" if number % 2 else "same")))
    write(folder / "op_autocompare_result", "op_autocompare_info", rows)
    write(folder / "op_time_measure_result", "op_elasped_info", [timed(number) for number in range(119)])
    write(
        folder / "op_time_measure_result",
        "op_elasped_info",
        [timed(119, "torch.mm", forward=50.0, backward=93.0)],
    )
    born = row(
        260,
        "aten.div.Tensor",
        level="aten",
        kind="NaN",
        status="born",
        input="(float32[4]@dipu:0)",
        output="float32[4]@dipu:0",
    )
    write(folder / "op_overflow_check_result", "op_overflow_check_info", [born])
    memory = [
        {
            "time_s": 1000.0 + n,
            "host_rss_bytes": 1_000_000_000 + n * 1_000_000,
            "device_allocated_bytes": n * 1_000_000,
        }
        for n in range(30)
    ]
    write(folder / "process_memory_result", "process_memory_info", memory)
    return folder
