"""What torch itself skips: the decorators of a database entry that turn off torch's own test of the same question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _ditorch.torch_tests.model import Check, Outcome, State
from _ditorch.torch_tests.opinfo.plan import NO_DTYPE, dtype_named

__all__ = ["mark"]

# Torch's own test of each question: class and method in test_ops.py and test_ops_gradients.py.
_TESTS = {
    Check.FORWARD: ("TestCommon", "test_compare_cpu"),
    Check.GRADIENT: ("TestBwdGradients", "test_fn_grad"),
    Check.OUT: ("TestCommon", "test_out"),
    Check.INPLACE: ("TestCommon", "test_variant_consistency_eager"),
    Check.NONCONTIGUOUS: ("TestCommon", "test_noncontiguous_samples"),
    Check.DTYPES: ("TestCommon", "test_dtypes"),
    Check.ERRORS: ("TestCommon", "test_errors"),
}


def mark(op: Any, outcome: Outcome, device_type: str) -> None:
    """Call a failure torch's own where torch skips its test of it, or expects it to fail; never a crash or a hang."""
    if outcome.lost:
        return
    class_name, test = _TESTS[outcome.pair.check]
    dtype = None if outcome.pair.dtype == NO_DTYPE else dtype_named(outcome.pair.dtype)
    for decorator in _active(op, class_name, test, device_type, dtype):
        if _turns_off(decorator):
            outcome.known = State.ARTEFACT
            outcome.reason = (
                f"Torch turns its own {class_name}.{test} off for this operator on {device_type}."
            )
            return


def _active(op: Any, class_name: str, test: str, device_type: str, dtype: Any) -> Iterator[Any]:
    for entry in getattr(op, "decorators", ()):
        if hasattr(entry, "is_active") and entry.is_active(class_name, test, device_type, dtype, {}):
            yield from entry.decorators


def _turns_off(decorator: Any) -> bool:
    """Seen from what it does to a function: unittest leaves its mark on it."""

    def test(self: Any) -> None:
        """Something to decorate."""

    try:
        decorated = decorator(test)
    except Exception:  # some decorators want the real test; they are not the ones looked for
        return False
    return bool(
        getattr(decorated, "__unittest_skip__", False)
        or getattr(decorated, "__unittest_expecting_failure__", False)
    )
