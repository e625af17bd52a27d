"""The rows of a comparison in a results folder, where reports find them."""

from __future__ import annotations

import os
from pathlib import Path

from op_tools.diff.model import Report, described
from op_tools.results import Results

__all__ = ["write_rows"]

FOLDER, NAME = "op_diff_result", "op_diff_info"
COLUMNS = (
    "forward_id", "name", "status", "side", "verdict", "reason", "pairing", "allclose", "cosine_similarity",
    "max_abs_diff", "max_relative_diff", "error_over_bound", "call_site", "module", "step", "rank", "phase", "level",
    "forward_name", "folder_a", "folder_b",
)  # fmt: skip


def write_rows(report: Report, out: Path) -> str:
    """Write one row per entry below `out`; the path of the CSV file."""
    results = Results(os.path.join(out, FOLDER), NAME, COLUMNS)
    results.extend([described(entry) for entry in report.entries])
    results.close()
    return results.csv_path
