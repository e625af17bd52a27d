"""What can go wrong, said so that the reader knows what to change."""

from __future__ import annotations


class DlinferArgumentError(ValueError):
    """An argument of an operator is wrong: which, how, and what was expected."""

    def __init__(self, operator: str, argument: str, problem: str) -> None:
        super().__init__(f"dlinfer.{operator}: {argument}: {problem}")
        self.operator = operator
        self.argument = argument
        self.problem = problem


class VendorError(RuntimeError):
    """A vendor cannot be used; says why and what to do."""


class RuleError(ValueError):
    """A rule of a kernel adaptor does not fit its operator; says which rule and why."""


class GraphError(RuntimeError):
    """A graph cannot be captured, or its backend cannot be used; says why and what to do."""


class UnknownBackendError(GraphError, ValueError):
    """No graph backend has this name."""
