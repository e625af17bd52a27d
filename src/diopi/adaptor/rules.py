"""What rules mean: for each operator and each of its tensors, the dtypes and layouts that the library wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from diopi.library.errors import LibraryError
from diopi.library.handles import DTYPES
from diopi.table import Entry, load

LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC", "NCL", "NLC", "ND")
# What the adaptor can make of other operators (csrc/adaptor/composites.cpp).
COMPOSITES = (
    "diopiAddmm",
    "diopiBaddbmm",
    "diopiBaddbmmInp",
    "diopiLinear",
    "diopiAddcmul",
    "diopiAddcmulInp",
    "diopiAddcdiv",
    "diopiAddcdivInp",
    "diopiSilu",
    "diopiSiluInp",
    "diopiSiluBackward",
    "diopiSigmoidBackward",
    "diopiTanhBackward",
    "diopiRsqrt",
    "diopiLerpScalar",
    "diopiNeg",
)
HEADERS = ("functions.h", "functions_ext.h")
"""What can be adapted."""

# Tensors the library makes have the dtype of an input, or hold positions or counts, which are int64. Others have a dtype that
# no rule changes, such as the float32 sums of attention in half precision.
_COUNTS = "counts"
_MADE = {
    ("diopiIndex", "out"): "input",
    ("diopiMaskedSelect", "out"): "input",
    ("diopiUnique", "out"): "input",
    ("diopiUnique", "counts"): _COUNTS,
    ("diopiNonzero", "out"): _COUNTS,
    ("diopiNms", "out"): _COUNTS,
    ("diopiContiguous", "out"): "input",
    ("diopiNativeMemoryFormatCast", "out"): "in",
    ("diopiCustomizedFlashAttention", "softmax_out"): "q",
    ("diopiCustomizedFlashAttentionVarLen", "softmax_out"): "q",
}
# In-place by name, but nothing of the old value is read: it may be memory that was never written, whose values do not fit.
_OVERWRITTEN = {
    ("diopiFill", "input"),
    ("diopiZeroInp", "self"),
    ("diopiCopyInp", "dest"),
    ("diopiUniformInp", "inout"),
    ("diopiNormalInp", "inout"),
    ("diopiRandomInp", "inout"),
}


class RulesError(LibraryError):
    """Rules are wrong; every line says where and what was expected."""


@dataclass(frozen=True)
class ArgumentRule:
    """What the library wants one tensor to be."""

    dtypes: Mapping[str, str] = field(default_factory=dict)
    """dtype of the caller -> dtype of the library"""
    layouts: tuple[str, ...] = ()
    """accepted ones; the first that has the tensor's rank is what others are converted to"""
    contiguous: bool = False

    def __bool__(self) -> bool:
        return bool(self.dtypes or self.layouts or self.contiguous)


@dataclass
class Section:
    """What is written about one operator, or in common_config about all."""

    dtypes: dict[str, str] = field(default_factory=dict)
    tensor_dtypes: dict[str, dict[str, str]] = field(default_factory=dict)
    layouts: tuple[str, ...] | None = None
    tensor_layouts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    contiguous: bool | frozenset[str] | None = None
    composite: bool | None = None


@dataclass(frozen=True)
class AdaptorRules:
    """The rules of every operator that has some: by name, then by the position of the argument in C."""

    operators: Mapping[str, Mapping[int, ArgumentRule]]
    composites: frozenset[str]

    def compact(self) -> str:
        """The form that diopi_adaptor_configure takes: one line for each argument."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name in sorted(self.composites):
            yield f"{name} composite"
        for name, arguments in self.operators.items():
            for position, rule in arguments.items():
                role = role_word(adaptable()[name], position)
                if role is None:
                    continue
                dtypes = ",".join(f"{DTYPES[a][0]}:{DTYPES[b][0]}" for a, b in rule.dtypes.items())
                contiguous = "contiguous" if rule.contiguous else "-"
                yield f"{name} {position} {role} {dtypes or '-'} {','.join(rule.layouts) or '-'} {contiguous}"


@cache
def adaptable() -> dict[str, Entry]:
    """The operators that the adaptor serves: those of functions.h and functions_ext.h."""
    return {
        name: entry
        for name, entry in load().entries.items()
        if entry.function.header in HEADERS and entry.function.returns == "diopiError_t"
    }


def tensors_of(name: str) -> dict[str, int]:
    """The tensors among an operator's arguments: name -> position."""
    entry = adaptable()[name]
    roles = ((i, a.name, entry.role(a)) for i, a in enumerate(entry.function.arguments))
    return {argument: position for position, argument, role in roles if role not in (None, "value")}


def role_word(entry: Entry, position: int) -> str | None:
    """What the function does with a tensor argument, as the adaptor reads it: in, out, update, made:2 (like the argument at
    position 2), made:counts. None: a tensor that it makes in a dtype of its own, which no rule changes."""
    argument = entry.function.arguments[position]
    role = entry.role(argument)
    if role == "made":
        like = _MADE.get((entry.name, argument.name))
        if like is None:
            return None
        names = [a.name for a in entry.function.arguments]
        return f"made:{like if like == _COUNTS else names.index(like)}"
    if (entry.name, argument.name) in _OVERWRITTEN:
        return "out"
    return {"ins": "in", "outs": "out", "updates": "update"}.get(role or "", role)


def combined(common: Section, sections: Mapping[str, Section]) -> AdaptorRules:
    """The rules of each argument: what is said about it, else about its operator, else about all."""
    operators: dict[str, dict[int, ArgumentRule]] = {}
    composites = set()
    for name in adaptable():
        own = sections.get(name, Section())
        found = {
            position: rule
            for argument, position in tensors_of(name).items()
            if (rule := _rule(argument, common, own))
        }
        if found:
            operators[name] = found
        if own.composite if own.composite is not None else common.composite:
            composites.add(name)
    return AdaptorRules(operators, frozenset(composites))


def _rule(argument: str, common: Section, own: Section) -> ArgumentRule:
    dtypes = {
        **common.dtypes,
        **common.tensor_dtypes.get(argument, {}),
        **own.dtypes,
        **own.tensor_dtypes.get(argument, {}),
    }
    layouts: tuple[str, ...] | None = own.tensor_layouts.get(argument, own.layouts)
    if layouts is None:
        layouts = common.tensor_layouts.get(argument, common.layouts or ())
    wanted = own.contiguous if own.contiguous is not None else common.contiguous
    contiguous = wanted if isinstance(wanted, bool) else argument in (wanted or ())
    # a dtype that stays as it is cancels a rule for all; ND accepts everything
    return ArgumentRule(
        {a: b for a, b in dtypes.items() if a != b}, () if "ND" in layouts[:1] else layouts, contiguous
    )
