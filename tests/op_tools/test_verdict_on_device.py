"""The benchmark of the verdict on a right device: what its processes leave behind is counted, and nothing else."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from op_tools.storage.log import Log
from op_tools.tools.autocompare import OpAutoCompare

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def benchmark() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import verdict_on_device
    finally:
        sys.path.remove(str(BENCHMARKS))
    return verdict_on_device


ROWS = (
    ("torch.add output[0]", "same", ""),
    ("torch.mul output[0]", "pass", ""),
    ("torch.sum output[0]", "fail", "1 element is off"),
    ("torch.mm output[0]", "lower_precision", "TF32"),
    ("torch.rand output[0]", "skipped", ""),
)


def outcome_of(benchmark: Any, folder: Path, script: str, group: str = "float32") -> Any:
    task = benchmark.Task(group, "a model", (sys.executable, "-c", script, str(folder)), {}, folder)
    return task.run(time.monotonic() + 60)


def test_wrong_values_and_labels_of_a_process_are_counted_by_name(benchmark: Any, tmp_path: Path) -> None:
    with Log(tmp_path / OpAutoCompare.result_folder, OpAutoCompare.result_file) as log:
        for name, verdict, reason in ROWS:
            log.append(
                {"name": name, "verdict": verdict, "reason": reason, "module": "net.0", "call_site": ""}
            )
    outcome = outcome_of(benchmark, tmp_path, "")
    assert outcome.problem == ""
    assert outcome.statuses == Counter(same=1, skipped=1, fail=1, lower_precision=1, **{"pass": 1})
    [wrong, label] = outcome.findings
    assert "torch.sum output[0] 1 element is off (net.0)" in wrong and "torch.mm output[0] TF32" in label
    report = benchmark.as_report("dipu", [outcome], Counter(float32=1))
    case = report.cases[0]
    assert (case.figure, case.raw["judged"], case.missed) == (1, 4, True)


@pytest.mark.parametrize("script", ["", "raise SystemExit(3)", "import time; time.sleep(60)"])
def test_a_process_without_values_is_a_problem(benchmark: Any, tmp_path: Path, script: str) -> None:
    task = benchmark.Task("float32", "a model", (sys.executable, "-c", script), {}, tmp_path)
    outcome = task.run(time.monotonic() + (1 if "sleep" in script else 60))
    assert outcome.problem and not outcome.statuses
    [case, *_, unfinished] = benchmark.as_report("dipu", [outcome], Counter(float32=1)).cases
    assert case.raw["problems"] == {"a model": outcome.problem}
    assert unfinished.figure == 1 and unfinished.missed


def test_alarms_of_the_corpus_are_counted(benchmark: Any, tmp_path: Path) -> None:
    found = {
        "torch.float32": {
            "statuses": {"same": 900, "pass": 98, "fail": 2},
            "unexpected": ["mm: fail", "mv: fail"],
        }
    }
    (tmp_path / "corpus.json").write_text(json.dumps({"found": {"right": found}}))
    outcome = outcome_of(benchmark, tmp_path, "", "corpus")
    accused = benchmark.as_report("dipu", [outcome], Counter(corpus=1)).cases[2]
    assert accused.figure == pytest.approx(0.2) and len(outcome.findings) == 2


def test_the_parts_of_the_corpus_are_the_whole(benchmark: Any) -> None:
    import verdict_detection

    whole = verdict_detection.run("cpu", 1, "^(add|mul|exp)$", share=0)["found"]["right"]
    parts = [
        verdict_detection.run("cpu", 1, "^(add|mul|exp)$", share=0, part=(i, 2))["found"]["right"]
        for i in (0, 1)
    ]
    counts = [verdict_detection.together(found).count for found in (whole, *parts)]
    assert counts[0] == counts[1] + counts[2] and min(counts) > 0


def test_what_was_kept_gives_the_same_figures(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept" / "float32" / "llama2" / OpAutoCompare.result_folder
    with Log(folder, OpAutoCompare.result_file) as log:
        for times in (1, 2):
            log.append(
                {
                    "name": f"add {times}",
                    "verdict": "fail",
                    "reason": "off",
                    "module": "",
                    "call_site": "a.py:1",
                }
            )
    given = ["verdict_on_device.py", "--models", "llama2", "--seeds", "--read", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", [*given, "--json", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit):
        benchmark.main()
    [first, second, *_] = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert (first["figure"], first["raw"]["judged"], len(first["raw"]["findings"])) == (2, 2, 2)
    assert second["raw"]["problems"] == {"llama2": "judged nothing"}  # bfloat16 was not kept
    monkeypatch.setattr(sys, "argv", [*given[:-1], str(tmp_path / "no such folder")])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "no such folder" in capsys.readouterr().err
