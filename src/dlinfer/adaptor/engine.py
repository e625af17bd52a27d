"""Puts rules in front of a kernel: the result is a kernel as the interface wants it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dlinfer.adaptor.rules import Cast, Constant, Drop, Fold, Layout, Rename, Rule
from dlinfer.errors import DlinferArgumentError, RuleError
from dlinfer.interface.declaration import Kernel, Operator

_RESULT = re.compile(r"result(\d*)")
_ORDER = re.compile(r"([A-Z]+)->([A-Z]+)")


def adapted(operator: Operator, kernel: Kernel, rules: Sequence[Rule]) -> Kernel:
    """A kernel with the interface's signature. RuleError: a rule does not fit the operator."""
    if not callable(kernel):
        raise RuleError(f"{operator.name}: the kernel is {kernel!r}, expected something that can be called")
    if not rules:
        return kernel
    return _Adapted(operator, kernel, rules)


class _Adapted:
    """One kernel behind its rules."""

    def __init__(self, operator: Operator, kernel: Kernel, rules: Sequence[Rule]) -> None:
        self._operator = operator
        self._kernel = kernel
        self._names: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._drops: list[Drop] = []
        self._folds: list[Fold] = []
        self._arguments: dict[str, list[Rule]] = {}
        self._results: dict[int, list[Rule]] = {}
        self.__name__ = f"adapted_{operator.name}"
        for rule in rules:
            self._add(rule)
        self._validate()

    # ---- when the vendor is loaded ----

    def _wrong(self, rule: Rule, problem: str) -> RuleError:
        return RuleError(f"{self._operator.name}: {rule!r}: {problem}")

    def _add(self, rule: Rule) -> None:
        if isinstance(rule, Constant):
            if rule.name in self._operator.arguments or rule.name in self._constants:
                raise self._wrong(rule, "the argument exists already; a constant is one more argument")
            self._constants[rule.name] = rule.value
            return
        index = _RESULT.fullmatch(rule.argument)
        if index is not None and rule.argument not in self._operator.arguments:
            self._add_result(rule, int(index[1] or 0))
            return
        self._require_declared(rule, rule.argument)
        if isinstance(rule, Rename):
            if rule.argument in self._names:
                raise self._wrong(rule, "the argument is renamed twice")
            self._names[rule.argument] = rule.name
        elif isinstance(rule, Drop):
            self._drops.append(rule)
        elif isinstance(rule, Fold):
            self._require_declared(rule, rule.into)
            if rule.into in self._operator.writes:
                raise self._wrong(rule, "the kernel writes to that tensor")
            self._folds.append(rule)
        else:
            if isinstance(rule, Layout):
                _permutation(self._operator.name, rule)
            if isinstance(rule, Cast) and rule.dtype is None:
                raise self._wrong(rule, "say which dtype the kernel wants")
            self._arguments.setdefault(rule.argument, []).append(rule)

    def _add_result(self, rule: Rule, index: int) -> None:
        if index >= len(self._operator.parsed.returns):
            raise self._wrong(rule, f"the operator has {len(self._operator.parsed.returns)} results")
        if not isinstance(rule, (Layout, Cast)):
            raise self._wrong(rule, "only Layout and Cast are for results")
        if isinstance(rule, Layout):
            _permutation(self._operator.name, rule)
        elif rule.dtype is not None:
            raise self._wrong(rule, "leave out the dtype: the interface says which it must become")
        self._results.setdefault(index, []).append(rule)

    def _require_declared(self, rule: Rule, argument: str) -> None:
        if argument not in self._operator.arguments:
            declared = ", ".join(self._operator.arguments)
            raise self._wrong(rule, f"there is no argument {argument!r}; there are {declared}")

    def _validate(self) -> None:
        gone = [rule.argument for rule in self._drops] + [rule.argument for rule in self._folds]
        for name in gone:
            if gone.count(name) > 1 or name in self._names or name in self._arguments:
                raise RuleError(f"{self._operator.name}: {name} is dropped or folded, and has another rule")
        names = [*self._names.values(), *self._constants]
        kept = set(self._operator.arguments) - set(gone) - set(self._names)
        for name in names:
            if names.count(name) > 1 or name in kept:
                raise RuleError(
                    f"{self._operator.name}: two arguments of the kernel would be called {name!r}"
                )

    # ---- for each call ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._operator.bound(args, kwargs)
        shapes = dict(given)
        for drop in self._drops:
            value = given.pop(drop.argument)
            if not drop.ignored and not _same(value, drop.default):
                text = f"is {_shown(value)}, but the kernel only knows {drop.default!r}"
                raise DlinferArgumentError(self._operator.name, drop.argument, text)
        for fold in self._folds:
            factor = given.pop(fold.argument)
            if factor is not None:
                tensor = given[fold.into]
                given[fold.into] = (tensor * factor).to(tensor.dtype)
        back: list[tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]] = []
        for name, rules in self._arguments.items():
            if given.get(name) is not None:
                given[name] = self._changed(name, given[name], rules, back)
        # By keyword: where a rule drops or renames an argument, positions no longer fit.
        result = self._kernel(
            **{self._names.get(name, name): value for name, value in given.items()}, **self._constants
        )
        for target, value, restored in back:
            target.copy_(restored(value))
        return self._returned(result, shapes) if self._results else result

    def _changed(
        self,
        name: str,
        value: Tensor,
        rules: list[Rule],
        back: list[tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]],
    ) -> Tensor:
        original, steps = value, list[tuple[int, ...]]()
        for rule in rules:
            if isinstance(rule, Layout):
                order = _permutation(self._operator.name, rule)
                if value.dim() != len(order):
                    text = f"has shape {list(value.shape)}, expected {len(order)} dimensions for {rule.order}"
                    raise DlinferArgumentError(self._operator.name, name, text)
                value = value.permute(order)
                steps.append(_inverse(order))
            elif isinstance(rule, Cast):
                value = value.to(rule.dtype)
            else:
                value = value.contiguous()
        if name in self._operator.writes and value.data_ptr() != original.data_ptr():

            def restored(written: Tensor) -> Tensor:
                for order in reversed(steps):
                    written = written.permute(order)
                return written

            back.append((original, value, restored))
        return value

    def _returned(self, result: Any, given: dict[str, Any]) -> Any:
        several = isinstance(result, (tuple, list))
        values = list(result) if several else [result]
        wanted = self._promised(given)
        for index, rules in self._results.items():
            for rule in rules:
                if isinstance(rule, Layout):
                    values[index] = values[index].permute(_inverse(_permutation(self._operator.name, rule)))
                else:
                    values[index] = values[index].to(wanted[index].dtype)
        return tuple(values) if several else values[0]

    def _promised(self, given: dict[str, Any]) -> list[Any]:
        """Results without values, as the interface promises them."""
        with torch.device("meta"):
            fakes = self._operator.fake(*(_meta(value) for value in given.values()))
        return list(fakes) if isinstance(fakes, tuple) else [fakes]


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _permutation(operator: str, rule: Layout) -> tuple[int, ...]:
    found = _ORDER.fullmatch(rule.order)
    if found is None or sorted(found[1]) != sorted(found[2]) or len(set(found[1])) != len(found[1]):
        raise RuleError(
            f"{operator}: {rule!r}: expected the same different letters on both sides of ->, as in 'BSND->BNSD'"
        )
    return tuple(found[1].index(letter) for letter in found[2])


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(index) for index in range(len(order)))


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor) or isinstance(default, Tensor):
        return value is default
    return bool(value == default)


def _shown(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
