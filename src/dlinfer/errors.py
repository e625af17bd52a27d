"""What can go wrong, said so that the reader knows what to change."""

from __future__ import annotations


class DlinferArgumentError(ValueError):
    """An argument of an operator is wrong: which, how, and what was expected."""

    def __init__(self, operator: str, argument: str, problem: str) -> None:
        super().__init__(operator, argument, problem)
        self.operator, self.argument, self.problem = operator, argument, problem

    def __str__(self) -> str:
        return f"dlinfer.{self.operator}: {self.argument}: {self.problem}"


def wrong(argument: str, problem: str) -> DlinferArgumentError:
    """The error of a check that many operators share. `Operator.bind` and the call forms fill in whose argument it is."""
    return DlinferArgumentError("", argument, problem)


class VendorError(RuntimeError):
    """A vendor cannot be used; says why and what to do."""


class RuleError(ValueError):
    """A rule of a kernel adaptor does not fit its operator; says which rule and why."""


class GraphError(RuntimeError):
    """A graph cannot be captured, or its backend cannot be used; says why and what to do."""


class UnknownBackendError(GraphError, ValueError):
    """No graph backend has this name."""
