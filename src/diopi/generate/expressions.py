"""Translates the table's expressions, which are Python, into the C++ of the registrations.

An expression sees the parameters of an ATen overload by name. What it may use is the common part of both languages: numbers,
comparisons, and/or/not, `x.dim()` and the other methods that tensors have in both, `.shape`, `.dtype`, dtypes such as
`torch.bool`, `float(x)`, `len(x)`, and the functions that csrc/aten/wrapper.h and diopi.lowering both define.
"""

from __future__ import annotations

import ast
import json

from diopi.table import TableError

_DTYPES = {
    "bool": "at::kBool",
    "uint8": "at::kByte",
    "int8": "at::kChar",
    "int16": "at::kShort",
    "int32": "at::kInt",
    "int64": "at::kLong",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "float32": "at::kFloat",
    "float64": "at::kDouble",
    "complex64": "at::kComplexFloat",
    "complex128": "at::kComplexDouble",
}
_ATTRIBUTES = {"shape": "sizes()", "dtype": "scalar_type()", "ndim": "dim()"}
_CONSTANTS = {True: "true", False: "false", None: "nullptr"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    # of sizes, which are never negative: for those both languages agree
    ast.FloorDiv: "/",
    ast.Mod: "%",
}


_KEYWORDS = {"from_": "from", "in_": "in", "is_": "is", "lambda_": "lambda"}
_COMPOUND = (ast.BoolOp, ast.Compare, ast.IfExp, ast.BinOp)


def in_cpp(expression: str) -> str:
    """The C++ of one Python expression; TableError if it says something that has no counterpart."""
    return _Translator(expression).translated(ast.parse(expression, mode="eval").body)


class _Translator(ast.NodeVisitor):
    """One method for each kind of node; what has none is refused."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def translated(self, node: ast.expr) -> str:
        text: str = self.visit(node)
        return text

    def generic_visit(self, node: ast.AST) -> str:
        raise self._refused(node, "has no counterpart in C++")

    def visit_Constant(self, node: ast.Constant) -> str:
        if not isinstance(node.value, bool | int | float | str | None):
            raise self._refused(node, "has no counterpart in C++")
        if node.value is None or isinstance(node.value, bool):
            return _CONSTANTS[node.value]
        if isinstance(node.value, str):
            return json.dumps(node.value)
        return repr(node.value)

    def visit_Name(self, node: ast.Name) -> str:
        return _KEYWORDS.get(node.id, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> str:
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in _DTYPES:
            return _DTYPES[node.attr]
        return f"{self.translated(node.value)}.{_ATTRIBUTES.get(node.attr, node.attr)}"

    def visit_Subscript(self, node: ast.Subscript) -> str:
        if not isinstance(node.slice, ast.Constant):
            raise self._refused(node, "indexes by something else than a number from 0 on")
        return f"{self.translated(node.value)}[{self.translated(node.slice)}]"

    def visit_BoolOp(self, node: ast.BoolOp) -> str:
        joined = " && " if isinstance(node.op, ast.And) else " || "
        return joined.join(self._bracketed(value) for value in node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> str:
        if not isinstance(node.op, ast.Not | ast.USub):
            raise self._refused(node, "has no counterpart in C++")
        return f"{'!' if isinstance(node.op, ast.Not) else '-'}{self._bracketed(node.operand)}"

    def visit_BinOp(self, node: ast.BinOp) -> str:
        if type(node.op) not in _ARITHMETIC:
            raise self._refused(node, "has no counterpart in C++")
        return f"{self._bracketed(node.left)} {_ARITHMETIC[type(node.op)]} {self._bracketed(node.right)}"

    def visit_IfExp(self, node: ast.IfExp) -> str:
        return f"{self._bracketed(node.test)} ? {self._bracketed(node.body)} : {self._bracketed(node.orelse)}"

    def visit_Tuple(self, node: ast.Tuple) -> str:
        return "{" + ", ".join(self.translated(item) for item in node.elts) + "}"

    def visit_List(self, node: ast.List) -> str:
        return "{" + ", ".join(self.translated(item) for item in node.elts) + "}"

    def visit_Compare(self, node: ast.Compare) -> str:
        parts, left = [], node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARISONS:
                raise self._refused(
                    node, "compares in a way C++ cannot; for None use present(x) or absent(x)"
                )
            parts.append(f"{self._bracketed(left)} {_COMPARISONS[type(op)]} {self._bracketed(right)}")
            left = right
        return parts[0] if len(parts) == 1 else " && ".join(f"({part})" for part in parts)

    def visit_Call(self, node: ast.Call) -> str:
        if node.keywords:
            raise self._refused(node, "names an argument, which C++ cannot")
        arguments = [self.translated(a) for a in node.args]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "float":
            return f"{arguments[0]}.toDouble()"
        if name == "len":
            return f"count({arguments[0]})"
        return f"{self.translated(node.func)}({', '.join(arguments)})"

    def _bracketed(self, node: ast.expr) -> str:
        text = self.translated(node)
        return f"({text})" if isinstance(node, _COMPOUND) else text

    def _refused(self, node: ast.AST, why: str) -> TableError:
        return TableError(f"{ast.unparse(node)!r} {why}; it is part of {self._expression!r}")
