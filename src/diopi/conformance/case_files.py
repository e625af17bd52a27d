"""Case files that users write, in the form that the published suite reads.

A file holds entries by name (Python: dictionaries at the top level; JSON, TOML, YAML: the document). An entry names one or more
functions and lists, index by index, the parameters and tensors of its cases:

    relu_big = dict(name=["relu"], interface=["torch"], dtype=[np.float32, np.float16], is_inplace=True,
                    tensor_para=dict(args=[{"ins": ["input"], "shape": [(2, 3), (0,)], "gen_fn": "Genfunc.randn"}]))

Python files are executed: read only those you trust. Import lines of the published suite (Genfunc, Dtype, Skip) are answered by
stand-ins, so its files are read as they are.
"""

from __future__ import annotations

import builtins
import json
import tomllib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dicore.suggestions import closest

ENTRY_KEYS = (
    "name",
    "interface",
    "dtype",
    "atol",
    "rtol",
    "atol_half",
    "rtol_half",
    "mismatch_ratio_threshold",
    "para",
    "is_inplace",
    "no_output_ref",
    "saved_args",
    "requires_backward",
    "tag",
    "need_context",
    "tensor_para",
    "gen_fn",
    "gen_policy",
)
TENSOR_PARA_KEYS = ("args", "gen_fn", "gen_policy", "dtype", "seq_name")
TENSOR_KEYS = (
    "ins",
    "shape",
    "value",
    "dtype",
    "gen_fn",
    "gen_policy",
    "requires_grad",
    "stride",
    "no_contiguous",
    "gen_num_range",
    "sparse",
)
_DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
    "complex128",
)
TOLERANCES = ("atol", "rtol", "atol_half", "rtol_half", "mismatch_ratio_threshold")
POLICIES = ("default", "gen_tensor_by_value", "gen_tensor_list", "gen_tensor_list_diff_shape")
FILLS = (
    "randn",
    "rand",
    "randint",
    "randn_int",
    "uniform",
    "zeros",
    "ones",
    "full",
    "positive",
    "mask",
    "empty",
    "sym_mat",
    "randn_cmplx",
    "arange",
)


class CaseFileError(ValueError):
    """A case file is wrong; says file, entry and key, and what was expected."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument at one index of an entry's lists."""

    name: str
    shape: Any = None
    value: Any = None
    absent: bool = False
    dtype: str | None = None
    fill: str = "randn"
    options: dict[str, Any] = field(default_factory=dict)
    policy: str = "default"
    requires_grad: bool = False
    stride: tuple[int, ...] | None = None
    reversed: bool = False
    count: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class FileCall:
    """One call that an entry asks for."""

    entry: str
    function: str
    interface: str
    in_place: bool
    parameters: dict[str, Any]
    tensors: tuple[TensorSpec, ...]


# ---- stand-ins for what the published files import ----


class _Named(type):
    """Any attribute is its own dotted name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name if cls.__name__ == "Dtype" else f"{cls.__name__}.{name}"


class Genfunc(metaclass=_Named):
    """Stands for the published generators of values."""


class Dtype(metaclass=_Named):
    """Stands for the published names of dtypes."""


class GenPolicy(metaclass=_Named):
    """Stands for the published ways to make tensors."""


class Skip:
    """Marks a value that a device does not support."""

    def __init__(self, value: Any) -> None:
        self.skipped = value

    def value(self) -> Any:
        """As the published class has it."""
        return self.skipped

    def __repr__(self) -> str:
        return f"Skip({self.skipped!r})"


_STAND_INS = {"Genfunc": Genfunc, "Dtype": Dtype, "GenPolicy": GenPolicy, "Skip": Skip}


def _stand_in_import(
    name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0
) -> types.ModuleType:
    """Modules of the published suite are not here: what is imported from them is a stand-in."""
    if wanted and all(item in _STAND_INS for item in wanted):
        module = types.ModuleType(name or "published")
        vars(module).update(_STAND_INS)
        return module
    return builtins.__import__(name, scope, local, wanted, level)


def executed(path: Path) -> dict[str, Any]:
    """The names that a Python file defines."""
    names: dict[str, Any] = {
        "__name__": path.stem,
        "__file__": str(path),
        "__builtins__": {**vars(builtins), "__import__": _stand_in_import},
        **_STAND_INS,
    }
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    except Exception as error:
        raise CaseFileError(f"{path}: {type(error).__name__}: {error}") from error
    return names


# ---- reading ----


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Entry -> its keys, checked; CaseFileError if something is wrong."""
    if not path.is_file():
        raise CaseFileError(f"{path}: no such file")
    entries = _document(path)
    if not entries:
        raise CaseFileError(f"{path}: holds no entry: a dictionary of entries that each have `name`")
    for name, entry in entries.items():
        _check_keys(path, name, entry)
    return entries


def _document(path: Path) -> dict[str, Any]:
    try:
        match path.suffix:
            case ".py":
                return _dictionaries(executed(path))
            case ".json":
                return dict(json.loads(path.read_text(encoding="utf-8")))
            case ".toml":
                return tomllib.loads(path.read_text(encoding="utf-8"))
            case ".yaml" | ".yml":
                import yaml  # type: ignore[import-untyped]

                return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except CaseFileError:
        raise
    except ImportError as error:
        raise CaseFileError(f"{path}: reading YAML needs pyyaml: pip install pyyaml") from error
    except Exception as error:
        raise CaseFileError(f"{path}: cannot be read ({error})") from error
    raise CaseFileError(f"{path}: case files end in .py, .json, .toml or .yaml")


def _dictionaries(names: dict[str, Any]) -> dict[str, Any]:
    """Entries: dictionaries that have `name`, or dictionaries of such."""
    found: dict[str, Any] = {}
    for key, value in names.items():
        if key.startswith("__") or not isinstance(value, dict):
            continue
        if "name" in value:
            found[key] = value
        elif value and all(isinstance(v, dict) for v in value.values()):
            found.update(value)
    return found


def _check_keys(path: Path, name: str, entry: Any) -> None:
    where = f"{path}: {name}"
    if not isinstance(entry, dict):
        raise CaseFileError(f"{where}: an entry is a dictionary, not {type(entry).__name__}")
    _check_names(where, entry, ENTRY_KEYS)
    if "name" not in entry:
        raise CaseFileError(f"{where}: `name` is missing: the functions it is about")
    tensors = entry.get("tensor_para", {})
    _check_names(f"{where}.tensor_para", tensors, TENSOR_PARA_KEYS)
    for number, tensor in enumerate(tensors.get("args", ())):
        location = f"{where}.tensor_para.args[{number}]"
        _check_names(location, tensor, TENSOR_KEYS)
        if "ins" not in tensor:
            raise CaseFileError(f"{location}: `ins` is missing: the names of the arguments")


def _check_names(where: str, given: Any, supported: tuple[str, ...]) -> None:
    if not isinstance(given, dict):
        raise CaseFileError(f"{where}: must be a dictionary, not {type(given).__name__}")
    for key in given:
        if key not in supported:
            close = closest(str(key), supported, most=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else f"; known are {', '.join(supported)}"
            raise CaseFileError(f"{where}: unknown key {key!r}{hint}")


# ---- expanding an entry into calls ----


def listed(value: Any) -> list[Any]:
    """One thing or several."""
    return list(value) if isinstance(value, list | tuple) else [value]


def dtype_name(where: str, value: Any) -> str:
    """`float32` of np.float32, Dtype.float32, "float32" or torch.float32."""
    name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    name = name.removeprefix("torch.").removeprefix("np.").removeprefix("Dtype.").rstrip("_")
    if name not in _DTYPES:
        raise CaseFileError(f"{where}: unknown dtype {value!r}; known are {', '.join(_DTYPES)}")
    return name


def expanded(path: Path, name: str, entry: dict[str, Any]) -> list[FileCall]:
    """All calls of an entry: function by function, dtype by dtype, index by index."""
    where = f"{path}: {name}"
    parameters = {key: listed(value) for key, value in entry.get("para", {}).items()}
    tensors = entry.get("tensor_para", {})
    arguments = [
        {**_inherited(entry, tensors, item), "ins": one}
        for item in tensors.get("args", ())
        for one in listed(item["ins"])
    ]
    count = _list_length(where, parameters, arguments)
    dtypes = max((len(listed(a["dtype"])) for a in arguments if "dtype" in a), default=1)
    in_place = _flag(entry.get("is_inplace", False))
    calls = []
    for function in listed(entry["name"]):
        for kind in range(dtypes):
            for index in range(count):
                specs = tuple(_tensor(f"{where}.{a['ins']}", a, index, kind) for a in arguments)
                given = {key: values[index % len(values)] for key, values in parameters.items()}
                interface = str(listed(entry.get("interface", [""]))[0])
                calls.append(FileCall(name, function, interface, False, given, specs))
                if in_place:
                    calls.append(FileCall(name, function, interface, True, given, specs))
    return calls


def _flag(value: Any) -> bool:
    return bool(listed(value)[0]) if listed(value) else False


def _inherited(entry: dict[str, Any], tensors: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """A key that a tensor does not have is taken from what surrounds it."""
    found = dict(item)
    for key in ("dtype", "gen_fn", "gen_policy"):
        for outer in (tensors, entry):
            if key not in found and key in outer:
                found[key] = outer[key]
    return found


def _list_length(where: str, parameters: dict[str, list[Any]], arguments: list[dict[str, Any]]) -> int:
    """How many cases the lists describe; they must agree (a list of one goes with all)."""
    lengths = {f"para.{key}": len(values) for key, values in parameters.items()}
    for argument in arguments:
        for key in ("shape", "value"):
            if key in argument:
                lengths[f"{argument['ins']}.{key}"] = len(argument[key])
    several = {key: length for key, length in lengths.items() if length != 1}
    if len(set(several.values())) > 1:
        told = ", ".join(f"{key} has {length}" for key, length in several.items())
        raise CaseFileError(f"{where}: lists of different lengths: {told}")
    return max(several.values(), default=1)


def _at(values: Any, index: int) -> Any:
    values = listed(values)
    return values[index % len(values)] if values else None


def _tensor(where: str, argument: dict[str, Any], index: int, kind: int) -> TensorSpec:
    policy = str(argument.get("gen_policy", "default")).removeprefix("GenPolicy.")
    policy = {"dafault": "default"}.get(policy, policy)
    if policy not in POLICIES:
        raise CaseFileError(f"{where}: unknown gen_policy {policy!r}; known are {', '.join(POLICIES)}")
    if any(listed(argument.get("sparse", [False]))):
        raise CaseFileError(f"{where}: sparse tensors are not supported here; leave `sparse` out")
    by_value = "value" in argument
    content = argument["value"] if by_value else argument.get("shape")
    if content is None:
        raise CaseFileError(f"{where}: `shape` (or `value`) is missing")
    chosen = list(content)[index % len(content)]
    generator = argument.get("gen_fn", "Genfunc.randn")
    options = {k: v for k, v in generator.items() if k != "fn"} if isinstance(generator, dict) else {}
    fill = str(generator["fn"] if isinstance(generator, dict) else generator).rpartition(".")[2]
    if fill not in FILLS:
        near = closest(fill, FILLS, most=2, cutoff=0.6)
        hint = f"near are {', '.join(near)}" if near else f"known are {', '.join(FILLS)}"
        raise CaseFileError(f"{where}: unknown gen_fn {fill!r}; {hint}")
    strides = _at(argument["stride"], index) if index < len(argument.get("stride", ())) else None
    count = tuple(argument.get("gen_num_range", (1, 1)))
    return TensorSpec(
        name=argument["ins"],
        shape=None if by_value else chosen,
        value=chosen if by_value else None,
        absent=chosen is None,
        dtype=dtype_name(where, _at(argument["dtype"], kind)) if "dtype" in argument else None,
        fill=fill,
        options=options,
        policy="gen_tensor_by_value" if by_value else policy,
        requires_grad=_flag(argument.get("requires_grad", False)),
        stride=tuple(strides) if strides is not None else None,
        reversed=_flag(argument.get("no_contiguous", False)),
        count=(int(count[0]), int(count[-1])),
    )
