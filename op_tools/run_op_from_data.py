"""The promised path `op_tools/run_op_from_data.py`: replays captured operators from a checkout of the project.

This folder has no `__init__.py` on purpose: it must never be taken for the package `op_tools`, which lives in
src/ and is what this script runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("op_tools.cli") is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]
    if not _is_installed():
        sys.path.insert(0, str(folder.parent / "src"))
    with contextlib.suppress(ImportError):
        import ditorch  # noqa: F401 - chooses the device and says which, as users expect

    from op_tools.run_op_from_data import main as replay

    replay()


if __name__ == "__main__":
    main()
