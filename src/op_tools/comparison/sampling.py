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

    Sampled: each signature at its first call, then one call in `1 / rate` of all calls, and each signature again
    once `refresh` steps have passed.
    """

    def __init__(self, mode: str, rate: float, refresh: int) -> None:
        self.mode = mode
        self.every = max(1, round(1 / rate)) if rate > 0 else 0
        self.refresh = refresh
        # signature -> step of its last comparison
        self._seen: dict[Hashable, int] = {}
        self._skipped = 0
        self.calls = 0
        self.taken = 0

    def would_take(self, signature: Hashable, step: int) -> bool:
        """Whether a call is to be compared; if not, it is counted as passed over."""
        last = self._seen.get(signature)
        if last is None:
            return True
        if self.mode != "changed" and (
            step - last >= self.refresh or (self.every and self._skipped + 1 >= self.every)
        ):
            return True
        self.calls += 1
        self._skipped += 1
        return False

    def takes(self, signature: Hashable, step: int) -> bool:
        """Whether the call with this signature is compared."""
        if not self.would_take(signature, step):
            return False
        self.calls += 1
        self.taken += 1
        last = self._seen.get(signature)
        if last is not None and step - last < self.refresh:
            # The rate is kept over all calls, so that rare signatures do not fall through it together.
            self._skipped = 0
        if len(self._seen) > 200_000:
            self._seen.clear()
        self._seen[signature] = step
        return True
