"""The PyTorch registrations: one C++ wrapper for each ATen overload that the table serves.

A wrapper allocates the outputs, calls the DIOPI function, and leaves to the fallback what the entry does not cover (a dtype, a
condition, a vendor without the function). PyTorch's own code generator supplies the C++ signatures and, for structured
operators, the shape functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from diopi.generate.expressions import in_cpp
from diopi.table import Argument, Entry, OperatorTable, TableError

FOLDER = "csrc/aten/generated"

_VALUE_TYPES = {
    "bool",
    "const bool",
    "int64_t",
    "const int64_t",
    "double",
    "const double",
    "float",
    "const float",
    "int32_t",
    "const int32_t",
    "int",
}
_CONVERTERS = {
    "diopiTensorHandle_t": "handle",
    "diopiConstTensorHandle_t": "handle",
    "const diopiScalar_t*": "::dipu::scalar",  # ATen has parameters of this name
    "diopiScalar_t*": "::dipu::scalar",
    "diopiSize_t": "::dipu::size",
    "const int64_t*": "pointer",
    "const bool*": "pointer",
    "const double*": "pointer",
    "const char*": "text",
    "diopiGeneratorHandle_t": "generator_handle",
    "diopiConstTensorHandle_t*": "handles",
    "diopiTensorHandle_t*": "handles_to",
    "diopiReduction_t": "static_cast<diopiReduction_t>",
    "diopiMemoryFormat_t": "static_cast<diopiMemoryFormat_t>",
    "const diopiSize_t": "::dipu::size",
    "const diopiConstTensorHandle_t": "handle",
}
# How what a function writes is handed over, by its role.
_OUTPUTS = {
    "out": "handle",
    "update": "handle",
    "outs": "handles_to",
    "updates": "handles_to",
    "made": "made",
    "value": "&",
}
_ABSENT = {
    "const int64_t*": "nullptr",
    "const bool*": "nullptr",
    "const double*": "nullptr",
    "const diopiScalar_t*": "nullptr",
    "diopiSize_t": "diopiSize_t{nullptr, 0}",
    "const char*": 'text("")',
}


@dataclass(frozen=True)
class Overload:
    """What PyTorch's generator knows of one ATen overload."""

    name: str
    symbol: str
    kind: str  # functional | inplace | out
    parameters: tuple[tuple[str, str], ...]  # C++ type, name
    returns: str
    results: int
    outs: tuple[str, ...]
    structured: str | None
    meta_arguments: tuple[str, ...]
    header: str


@cache
def _native_functions() -> tuple[dict, dict]:
    import torchgen
    from torchgen.gen import get_grouped_native_functions, parse_native_yaml
    from torchgen.model import NativeFunctionsGroup

    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    functions = {str(f.func.name): f for f in parsed.native_functions}
    groups = {}
    for group in get_grouped_native_functions(parsed.native_functions):
        if isinstance(group, NativeFunctionsGroup) and group.structured:
            for function in group.functions():
                groups[str(function.func.name)] = group
    return functions, groups


@cache
def describe(name: str) -> Overload:
    """One overload, by its ATen name such as `add.Tensor`."""
    from torchgen.api import structured
    from torchgen.api.translate import translate
    from torchgen.api.types import DispatcherSignature
    from torchgen.context import native_function_manager
    from torchgen.model import SchemaKind

    functions, groups = _native_functions()
    if name not in functions:
        raise TableError(f"{name} is not an ATen overload of this PyTorch")
    function = functions[name]
    kind = {SchemaKind.functional: "functional", SchemaKind.inplace: "inplace", SchemaKind.out: "out"}[
        function.func.kind()
    ]
    group = groups.get(name)
    meta_arguments: tuple[str, ...] = ()
    with native_function_manager(function):
        signature = DispatcherSignature.from_schema(function.func, symint=False)
        parameters = tuple((b.nctype.cpp_type(), b.name) for b in signature.arguments())
        returns = signature.returns_type().cpp_type()
        if group is not None:
            meta_arguments = tuple(
                e.expr
                for e in translate(signature.arguments(), structured.meta_arguments(group), method=False)
            )
    return Overload(
        name=name,
        symbol=function.func.name.unambiguous_name(),
        kind=kind,
        parameters=parameters,
        returns=returns,
        results=len(function.func.returns),
        outs=tuple(a.name for a in function.func.arguments.out),
        structured=f"at::meta::structured_{group.functional.func.name.unambiguous_name()}"
        if group is not None
        else None,
        meta_arguments=meta_arguments,
        header=function.root_name,
    )


def _output_arguments(entry: Entry, overload: Overload) -> list[str]:
    """The C names of what the function writes, in the order of the overload's results.

    Results behind them are what their rules of `outputs` compute by themselves.
    """
    written = entry.written()
    own = [a.name for a in written if entry.role(a) not in ("update", "updates")]
    names = own if overload.kind != "inplace" and own else [a.name for a in written]
    computed = overload.kind == "functional" and len(entry.outputs) == overload.results
    if len(names) < overload.results and not computed:
        raise TableError(
            f"{entry.source}: {entry.name} writes {names}, but {overload.name} has {overload.results} results"
        )
    return names[: overload.results]


def _expression(entry: Entry, overload: Overload, argument: Argument, outputs: list[str]) -> str:
    """The C++ expression that is handed over for one C argument."""
    given = {name for _, name in overload.parameters}
    if argument.name in outputs:
        target = _written(entry, overload, outputs.index(argument.name))
        return f"{_OUTPUTS[entry.role(argument) or 'out']}({target})"
    source = in_cpp(entry.args[argument.name]) if argument.name in entry.args else None
    if source is None:
        known_as = [argument.name, "self"] if argument.name == "input" else [argument.name]
        source = next((name for name in known_as if name in given), None)
    if source is None:
        if argument.ctype in _ABSENT:
            return _ABSENT[argument.ctype]
        raise TableError(
            f"{entry.source}: {entry.name}: nothing of {overload.name} {sorted(given)} fits its argument {argument.name}"
        )
    if source == in_cpp("None") and argument.ctype in _ABSENT:
        return _ABSENT[argument.ctype]
    if source == entry.scalar:
        source = f"cpu_value({source})"
    if argument.ctype in _CONVERTERS:
        return f"{_CONVERTERS[argument.ctype]}({source})"
    if argument.ctype in _VALUE_TYPES or source not in given:
        return source
    raise TableError(f"{entry.source}: {entry.name}: no conversion to {argument.ctype} {argument.name}")


def _written(entry: Entry, overload: Overload, index: int) -> str:
    if overload.structured and not entry.outputs:
        return f"results[{index}]"
    if overload.kind == "inplace":
        return "self"
    return overload.outs[index] if overload.kind == "out" else f"out{index}"


def _tensors(entry: Entry, overload: Overload, *, with_indices: bool) -> list[str]:
    """Names of the tensor parameters that decide whether an entry accepts a call."""
    chosen = []
    for ctype, name in overload.parameters:
        is_tensor = "at::Tensor" in ctype or "TensorList" in ctype
        if not is_tensor or name == entry.scalar or name in overload.outs:
            continue
        if with_indices == (name in entry.indices):
            chosen.append(name)
    return chosen


def _single_tensors(entry: Entry, overload: Overload) -> list[str]:
    return [n for t, n in overload.parameters if t == "const at::Tensor &" and n != entry.scalar] or ["self"]


# Outputs that exist only after the call: tensors the vendor makes, and numbers.
_LOCAL = {"made": "Made", "bool": "bool", "double": "double", "int64": "int64_t"}


def _allocation(entry: Entry, overload: Overload) -> list[str]:
    if overload.structured and not entry.outputs:
        given = {"functional": "", "inplace": "self", "out": ", ".join(overload.outs)}[overload.kind]
        kind = {"functional": "Functional", "inplace": "InPlace", "out": "Out"}[overload.kind]
        lines = [
            f"Outputs<{overload.structured}, {overload.results}, Kind::{kind}> "
            f"results(call.device(){', ' + given if given else ''});"
        ]
        meta = f"results.meta({', '.join(overload.meta_arguments)});"
        alike = ", ".join(_single_tensors(entry, overload))
        lines.append(
            f"if (!results.like({{{alike}}})) {meta}" if entry.same and overload.kind != "out" else meta
        )
        return lines
    if overload.kind == "functional":
        if len(entry.outputs) != overload.results:
            raise TableError(
                f"{entry.source}: {entry.name}: outputs must describe the {overload.results} results of {overload.name}"
            )
        return [
            f"{_LOCAL.get(rule, 'auto')} out{i}{'' if rule in _LOCAL else ' = ' + rule};"
            for i, rule in enumerate(entry.outputs)
        ]
    if overload.kind == "out":
        if len(entry.resize) != overload.results:
            raise TableError(
                f"{entry.source}: {entry.name}: {overload.name} is not structured; say in `resize` how each of its "
                f"{overload.results} outputs gets its size, or serve its functional form only"
            )
        return [f"{rule};" for rule in entry.resize]
    return []


def _result(entry: Entry, overload: Overload) -> str:
    names = [_written(entry, overload, i) for i in range(overload.results)]
    if overload.returns == "void":
        return "return;"
    if overload.kind == "functional" and not (overload.structured and not entry.outputs):
        names = [
            f"{name}.tensor()" if rule == "made" else name
            for name, rule in zip(names, entry.outputs, strict=True)
        ]
    if overload.kind == "functional":
        if len(names) == 1 and not names[0].startswith("results"):
            return f"return {names[0]};"  # a local: moved by itself
        moved = ", ".join(f"std::move({n})" for n in names)
        return f"return {moved};" if len(names) == 1 else f"return {{{moved}}};"
    finish = "results.finish(); " if overload.structured and not entry.outputs else ""
    if overload.kind == "inplace":
        return f"{finish}return self;"
    outs = list(overload.outs)
    return f"{finish}return {outs[0] if len(outs) == 1 else '{' + ', '.join(outs) + '}'};"


def _attempt(entry: Entry, overload: Overload) -> str:
    """The block of a wrapper that tries one entry."""
    outputs = _output_arguments(entry, overload)
    arguments = [
        _expression(entry, overload, a, outputs)
        for a in entry.function.arguments
        if a.ctype != "diopiContextHandle_t"
    ]
    mask = " | ".join(f"k{g.capitalize()}" for g in entry.dtypes)
    conditions = []
    if tensors := _tensors(entry, overload, with_indices=False):
        conditions.append(f"call.accepts({mask}, {', '.join(tensors)})")
    if indices := _tensors(entry, overload, with_indices=True):
        conditions.append(f"call.accepts(kInt, {', '.join(indices)})")
    if overload.outs:
        conditions.append(
            f"call.holds({mask if not tensors else '~DtypeMask(0)'}, {', '.join(overload.outs)})"
        )
    if entry.scalar:
        conditions.insert(0, f"is_cpu_scalar({entry.scalar})")
    conditions += [
        f"plain({name})"
        for ctype, name in overload.parameters
        if "at::Scalar " in ctype or "at::Scalar>" in ctype
    ]
    if entry.when:
        conditions.append(f"({in_cpp(entry.when)})")
    lines = [
        "{",
        f'    static Operator op("{entry.name}", __LINE__);',
        f"    Call call(op, record{', Form::Scalar' if entry.scalar else ''});",
        f"    if ({' && '.join(conditions)}) {{",
        *(f"        {line}" for line in _allocation(entry, overload)),
        f"        if (call.run<decltype(&::{entry.name})>({', '.join(arguments)})) {{ {_result(entry, overload)} }}",
        "    }",
        "}",
    ]
    return "\n".join("    " + line for line in lines)


def _with_exchanged(entries: list[Entry]) -> list[Entry]:
    """A commuting operator whose scalar operand comes first is the same call with its operands exchanged."""
    tried = []
    for entry in entries:
        tried.append(entry)
        if entry.commutes and entry.scalar == "other":
            tried.append(
                replace(entry, scalar="self", args={**entry.args, "input": "other", "other": "self"})
            )
    return tried


def _wrapper(overload: Overload, entries: list[Entry]) -> str:
    parameters = ", ".join(f"{ctype} {name}" for ctype, name in overload.parameters)
    given = [name for _, name in overload.parameters]
    names = ", ".join(given)
    attempts = "\n".join(_attempt(entry, overload) for entry in _with_exchanged(entries))
    fallback = f"fall_back<{overload.returns}>(record{', ' + names if names else ''})"
    otherwise = next((e.otherwise for e in entries if e.otherwise), None)
    if otherwise:
        fallback = f"return {otherwise}"
    elif overload.kind != "functional":
        written = ["self"] if overload.kind == "inplace" else list(overload.outs)
        result = written[0] if len(written) == 1 else "{" + ", ".join(written) + "}"
        returned = f"\n    return {result}" if overload.returns != "void" else "\n    return"
        fallback = f"fall_back<void>(record, {names});{returned}"
    else:
        fallback = f"return {fallback}"
    return (
        f"{overload.returns} {overload.symbol}({parameters}) {{\n"
        f'    static OpRecord& record = op_record("{overload.name}");\n'
        f"    if (must_instrument()) return instrumented<&::dipu::{overload.symbol}>({', '.join(['record', *given])});\n"
        f"{attempts}\n"
        f"    {fallback};\n"
        "}\n"
    )


def render(overloads: list[Overload], served: dict[str, list[Entry]]) -> str:
    """The wrappers of one file of the table."""
    headers = sorted({f"#include <ATen/ops/{o.header}_meta.h>" for o in overloads if o.structured})
    wrappers = "\n".join(_wrapper(o, served[o.name]) for o in overloads)
    registrations = "\n".join(f'    m.impl("{o.name}", TORCH_FN({o.symbol}));' for o in overloads)
    return (
        "// Generated by `python -m diopi.generate` from src/diopi/table. Do not edit.\n"
        '#include "../wrapper.h"\n\n'
        + "\n".join(headers)
        + "\n\nnamespace dipu {\nnamespace {\n\n"
        + wrappers
        + "\nTORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {\n"
        + registrations
        + "\n}\n\n}  // namespace\n}  // namespace dipu\n"
    )


def render_all(table: OperatorTable) -> dict[str, str]:
    """Path below the repository -> text: one file for each of the table's that serves an overload."""
    served = table.by_overload()
    files: dict[str, list[Overload]] = {}
    for name in sorted(served):
        category = served[name][0].source.removesuffix(".toml")
        files.setdefault(f"{FOLDER}/{category}.cpp", []).append(describe(name))
    return {path: render(overloads, served) for path, overloads in sorted(files.items())}
