"""Reads convert_config.yaml. Every mistake is reported with its line and column and with what was expected."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from dicore.suggestions import closest
from diopi.adaptor.rules import LAYOUTS, AdaptorRules, RulesError, Section, adaptable, combined, tensors_of
from diopi.library.handles import DTYPES
from diopi.table import load

_COMMON = "common_config"
_DTYPES = tuple(name for name in DTYPES if name != "tfloat32")
_ARROW = re.compile(r"\(\s*([^()]*?)\s*\)\s*->\s*(\w+)")
_TENSOR_LAYOUT = re.compile(r"(\w+)\s*\(\s*([^()]*?)\s*\)")
_NAME = re.compile(r"[^,\s][^,]*")  # between commas
_TRUTH = {"true": True, "false": False}


class _Wrong(Exception):
    """A mistake at a node of the document; `offset`: characters into the text of the node."""

    def __init__(self, node: Any, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.node, self.offset = node, offset


def read_rules(path: str | os.PathLike[str]) -> AdaptorRules:
    """The rules of a file; RulesError names every mistake in it."""
    yaml = _yaml()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RulesError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RulesError(f"{path} is not a text file (UTF-8)") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise RulesError(
            f"{path}{location}: this is not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    return _Reader(str(path)).read(root)


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise RulesError(
            "rules are written in YAML, and pyyaml is not installed: pip install ditorch[adaptor]"
        ) from None


def _close(word: str, supported: Iterable[str]) -> str:
    names = list(supported)
    near = closest(word, names, most=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known are {', '.join(names)}" if len(names) <= 40 else "see `diopi table` for all names"


def _kind(node: Any) -> str:
    return {"scalar": "a single value", "sequence": "a list", "mapping": "a group of keys"}[node.id]


class _Reader:
    """One file: collects its mistakes, so that all are told at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._problems: list[str] = []
        self._lines: dict[str, int] = {}
        self._operator: str | None = None
        self._keys: dict[str, Callable[[Section, Any], None]] = {
            "dtype": self._dtype,
            "tensor_dtype": self._tensor_dtype,
            "layout": self._layout,
            "contiguous": self._contiguous,
            "supportComposite": self._composite,
        }

    def read(self, root: Any) -> AdaptorRules:
        sections: dict[str, Section] = {}
        if root is None:
            raise RulesError(f"{self._path}: the file is empty; expected a list such as `- {_COMMON}: ...`")
        items = root.value if root.id == "sequence" else [root]
        for item in items:
            with self._told():
                if item.id != "mapping":
                    raise _Wrong(
                        item, f"this is {_kind(item)}; expected the name of an operator and its rules"
                    )
                for key, value in item.value:
                    with self._told():
                        sections[str(key.value)] = self._section(key, value)
        if len(self._problems) > 1:
            told = "".join(f"\n  {problem}" for problem in self._problems)
            raise RulesError(f"{len(self._problems)} mistakes in {self._path}:{told}")
        if self._problems:
            raise RulesError(self._problems[0])
        return combined(sections.pop(_COMMON, Section()), sections)

    def _told(self) -> _Told:
        return _Told(self._path, self._problems)

    def _note(self, node: Any, message: str, offset: int = 0) -> None:
        """Writes a mistake down; what follows is read all the same."""
        with self._told():
            raise _Wrong(node, message, offset)

    def _section(self, key: Any, value: Any) -> Section:
        name = str(key.value)
        self._check_operator(key, name)
        if name in self._lines:
            raise _Wrong(key, f"{name} has rules in line {self._lines[name]} already; write them together")
        self._lines[name] = key.start_mark.line + 1
        self._operator = None if name == _COMMON else name
        if value.id != "mapping":
            raise _Wrong(
                value, f"the rules of {name} are {_kind(value)}; expected keys: {', '.join(self._keys)}"
            )
        section = Section()
        seen: set[str] = set()
        for rule, content in value.value:
            with self._told():
                if rule.value not in self._keys:
                    raise _Wrong(rule, f"unknown key {rule.value!r}; {_close(str(rule.value), self._keys)}")
                if rule.value in seen:
                    raise _Wrong(rule, f"{rule.value} is given twice for {name}")
                seen.add(rule.value)
                self._keys[rule.value](section, content)
        return section

    @staticmethod
    def _check_operator(key: Any, name: str) -> None:
        if name == _COMMON or name in adaptable():
            return
        if name in load().functions:
            raise _Wrong(
                key, f"{name} cannot be adapted: only operators of functions.h and functions_ext.h can"
            )
        raise _Wrong(key, f"unknown operator {name!r}; {_close(name, [_COMMON, *adaptable()])}")

    def _argument(self, node: Any, name: str, offset: int = 0) -> str:
        """A tensor of the operator; of any operator in common_config."""
        if self._operator is None:
            names = sorted({argument for operator in adaptable() for argument in tensors_of(operator)})
            where = "no operator has a tensor"
        else:
            names = list(tensors_of(self._operator))
            where = f"{self._operator} has no tensor"
        if name not in names:
            raise _Wrong(node, f"{where} {name!r}; {_close(name, names)}", offset)
        return name

    # ---- the keys ----

    def _dtype(self, section: Section, node: Any) -> None:
        section.dtypes = dict(self._conversions(node))

    def _tensor_dtype(self, section: Section, node: Any) -> None:
        if node.id != "mapping":
            raise _Wrong(
                node, "tensor_dtype needs a key for each tensor, such as `input: (float64)->float32`"
            )
        for key, value in node.value:
            with self._told():
                section.tensor_dtypes[self._argument(key, str(key.value))] = dict(self._conversions(value))

    def _conversions(self, node: Any) -> Iterator[tuple[str, str]]:
        for part, text, offset in _parts(node):
            match = _ARROW.fullmatch(text)
            if match is None or not match[1].strip(", "):
                self._note(part, f"{text!r} is no conversion; expected (int64)->int32", offset)
                continue
            target = self._known_dtype(part, match[2], offset + match.start(2))
            for name in _NAME.finditer(match[1]):
                source = self._known_dtype(part, name[0].strip(), offset + match.start(1) + name.start())
                if source is None or target is None:
                    continue
                if source.startswith("complex") != target.startswith("complex"):
                    self._note(part, f"{source} cannot become {target}: complex numbers stay complex", offset)
                    continue
                yield source, target

    def _known_dtype(self, node: Any, name: str, offset: int) -> str | None:
        if name in _DTYPES:
            return name
        self._note(node, f"unknown dtype {name!r}; {_close(name, _DTYPES)}", offset)
        return None

    def _layout(self, section: Section, node: Any) -> None:
        defaults: list[str] = []
        for part, text, offset in _parts(node):
            match = _TENSOR_LAYOUT.fullmatch(text)
            if match is None:
                defaults += self._layouts(part, text, offset)
                continue
            names = self._layouts(part, match[2], offset + match.start(2))
            with self._told():
                section.tensor_layouts[self._argument(part, match[1], offset)] = tuple(names)
        if defaults:
            section.layouts = tuple(defaults)

    def _layouts(self, node: Any, text: str, offset: int) -> list[str]:
        """The known ones among names with commas between them."""
        expected = f"expected one of {', '.join(LAYOUTS)}, or input(NHWC)"
        found = [(match[0].strip(), match.start()) for match in _NAME.finditer(text)]
        if not found:
            self._note(node, f"no layout is given; {expected}", offset)
        for name, start in found:
            if name not in LAYOUTS:
                self._note(node, f"unknown layout {name!r}; {expected}", offset + start)
        return [name for name, _ in found if name in LAYOUTS]

    def _contiguous(self, section: Section, node: Any) -> None:
        if node.id == "scalar" and str(node.value).lower() in _TRUTH:
            section.contiguous = _TRUTH[str(node.value).lower()]
            return
        names = set()
        for part, text, offset in _parts(node):
            with self._told():
                names.add(self._argument(part, text, offset))
        section.contiguous = frozenset(names)

    def _composite(self, section: Section, node: Any) -> None:
        if node.id != "scalar" or str(node.value).lower() not in _TRUTH:
            raise _Wrong(node, "supportComposite is true or false")
        section.composite = _TRUTH[str(node.value).lower()]


class _Told:
    """Writes a mistake down and goes on behind it."""

    def __init__(self, path: str, problems: list[str]) -> None:
        self._path, self._problems = path, problems

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, _Wrong):
            return False
        mark = error.node.start_mark
        quoted = 1 if getattr(error.node, "style", None) in ("'", '"') else 0
        self._problems.append(
            f"{self._path}:{mark.line + 1}:{mark.column + 1 + error.offset + quoted}: {error}"
        )
        return True


def _parts(node: Any) -> Iterator[tuple[Any, str, int]]:
    """The items of `a, b(c, d)` or of a YAML list: node, text, where it starts in the node."""
    if node.id == "mapping":
        _refuse_mapping(node)
    if node.id == "sequence":
        for item in node.value:
            yield from _parts(item)
        return
    text = str(node.value)
    if not text.strip():
        raise _Wrong(node, "there is nothing here; leave the key out or give it a value")
    for match in re.finditer(r"(?:[^,(]|\([^)]*\)?)+", text):
        item = match[0].strip()
        if item:
            yield node, item, match.start() + len(match[0]) - len(match[0].lstrip())


def _refuse_mapping(node: Any) -> NoReturn:
    raise _Wrong(node, "these are keys; expected a text such as `a, b` or a list")
