"""What all tests share."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Full collections then look at what tests made, and not each time at all modules and tests, for half a second."""
    gc.collect()
    gc.freeze()
