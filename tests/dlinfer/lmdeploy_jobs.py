"""What the programs that run engines have in common: jobs by name, whose answers tests read as JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def write_answers(jobs: Mapping[str, Callable[[], Answer]], out: Path) -> None:
    """Do all of them; what fails is written down in its place."""
    results: dict[str, Answer] = {}
    for name, job in jobs.items():
        try:
            results[name] = job()
        except BaseException:  # LMDeploy leaves with SystemExit where an import or a check fails
            results[name] = {"error": traceback.format_exc()}
    out.write_text(json.dumps(results))


def answer_of(results: Mapping[str, Answer], name: str) -> Answer:
    """The answer of a job that did not fail."""
    answer = results[name]
    assert "error" not in answer, answer["error"]
    return answer
