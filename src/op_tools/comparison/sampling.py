"""Which calls of a training are compared: all, a sample, or those with a signature not seen before."""

from __future__ import annotations

from collections.abc import Hashable

MODES = ("every", "sampled", "changed")


def mode(text: str) -> str:
    """Read the name of a mode."""
    word = text.strip().lower()
    if word not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}, got {text!r}")
    return word


class Sampler:
    """Decides per call. Counts calls instead of drawing numbers: no random state is touched and runs repeat.

    Sampled: each signature at its first call, then one call in `1 / rate` of them, and in any case again once
    `refresh` steps have passed.
    """

    def __init__(self, mode: str, rate: float, refresh: int) -> None:
        self.mode = mode
        self.every = max(1, round(1 / rate)) if rate > 0 else 0
        self.refresh = refresh
        # signature -> [calls since the last comparison, step of the last comparison]
        self._seen: dict[Hashable, list[int]] = {}
        self._skipped = 0
        self.calls = 0
        self.taken = 0

    def takes(self, signature: Hashable, step: int) -> bool:
        """Whether the call with this signature is compared."""
        self.calls += 1
        known = self._seen.get(signature)
        if known is None:
            if len(self._seen) > 200_000:
                self._seen.clear()
            self._seen[signature] = [0, step]
        elif self.mode == "changed":
            return False
        else:
            self._skipped += 1
            due = step - known[1] >= self.refresh
            # The rate is kept over all calls, so that rare signatures do not fall through it together.
            if not due and not (self.every and self._skipped >= self.every):
                return False
            if not due:
                self._skipped = 0
            known[1] = step
        self.taken += 1
        return True
