"""Symbolic sizes as text and back: `(s0 + 1)//2` over symbols of another process."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch

# Private, and here only: torch has no public way to make symbols of a given name.
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from dicp.errors import DicpError

__all__ = ["number_of", "symbol_entry", "symbol_of", "text_of"]

_OPERATORS: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _maximum(*values: Any) -> Any:
    result = values[0]
    for value in values[1:]:
        result = torch.sym_max(result, value)
    return result


def _minimum(*values: Any) -> Any:
    return -_maximum(*(-value for value in values))


# As torch's expressions are printed.
_FUNCTIONS: Mapping[str, Any] = {
    "Max": _maximum,
    "Min": _minimum,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "ToFloat": torch.sym_float,
    "TruncToInt": torch.sym_int,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "OpaqueUnaryFn_sqrt": torch.sym_sqrt,
    "Eq": operator.eq,
    "Ne": operator.ne,
}


def text_of(number: Any) -> Any:
    """A number as JSON may hold it."""
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return str(number.node.expr)
    return number


def number_of(text: Any, symbols: Mapping[str, Any]) -> Any:
    """The number again. Raises DicpError where the text is not arithmetic on the symbols."""
    if not isinstance(text, str):
        return text
    try:
        return _value(ast.parse(text, mode="eval").body, symbols)
    except (SyntaxError, KeyError) as error:
        raise DicpError(f"a saved graph has the size {text!r}, of which {error} is not known.") from error


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name():
            return symbols[node.id]
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, symbols), _value(node.right, symbols))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, symbols))
        case ast.Compare(ops=[comparison], comparators=[other]):
            return _OPERATORS[type(comparison)](_value(node.left, symbols), _value(other, symbols))
        case ast.Call(func=ast.Name(id=function)):
            return _FUNCTIONS[function](*(_value(argument, symbols) for argument in node.args))
    raise KeyError(ast.unparse(node))


def symbol_entry(symbol: sympy.Symbol, env: ShapeEnv | None) -> dict[str, Any]:
    """What is kept of a symbol: an example of its value and its range."""
    known = {} if env is None else _examples(env)
    bounds = None if env is None else env.var_to_range.get(symbol)
    finite = [] if bounds is None else [_finite(bounds.lower), _finite(bounds.upper)]
    return {"name": str(symbol), "hint": int(known[symbol]) if symbol in known else None, "range": finite}


def symbol_of(entry: Mapping[str, Any], env: ShapeEnv) -> Any:
    """The SymInt of an entry, in an environment of its own."""
    name, hint = str(entry["name"]), entry["hint"]
    if hint is None:
        return env.create_unbacked_symint()
    symbol = sympy.Symbol(name, positive=True, integer=True)
    low, high = entry["range"] or (None, None)
    _examples(env)[symbol] = sympy.Integer(hint)
    bounds = ValueRanges(0 if low is None else low, int_oo if high is None else high)
    env._update_var_to_range(symbol, bounds)
    env.var_to_sources[symbol] = [ConstantSource(name)]
    return env.create_symintnode(symbol, hint=hint, source=ConstantSource(name))


def _examples(env: ShapeEnv) -> dict[sympy.Symbol, Any]:
    """Called otherwise before torch 2.12."""
    name = "backed_var_to_val" if hasattr(env, "backed_var_to_val") else "var_to_val"
    found: dict[sympy.Symbol, Any] = getattr(env, name)
    return found


def _finite(bound: Any) -> int | None:
    return int(bound) if getattr(bound, "is_Integer", False) else None
