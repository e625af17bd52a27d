"""The operators of the corpus, from all its files."""

from __future__ import annotations

import verdict_backward
import verdict_elementwise
import verdict_losses
import verdict_sums
import verdict_tiles
from verdict_subjects import ALL_REGIMES, REGIMES, SUBJECTS, Draw, Subject

__all__ = ["ALL_REGIMES", "REGIMES", "SUBJECTS", "Draw", "Subject"]

# Each of these adds its operators when it is imported.
FILES = (verdict_elementwise, verdict_sums, verdict_losses, verdict_backward, verdict_tiles)
