"""The judge of random numbers as text of a reproduction file: the modules that it consists of, which need torch alone."""

from __future__ import annotations

import importlib
import inspect

from op_tools.verdict.distribution import operator_of

__all__ = ["drawn_source"]

_HOME, _NEW_HOME = "op_tools.verdict", "reproduction"
# As they are loaded: each imports only those before it.
_MODULES = (
    "rounding", "distribution", "distribution.evidence", "distribution.draws", "distribution.laws",
    "distribution.discrete_laws", "distribution.picks",
    "distribution.masks", "distribution.repeats", "distribution.battery", "distribution.operators",
)  # fmt: skip

_LOADER = '''
def loaded(sources):
    """The modules of these texts."""
    for name, text in sources.items():
        if name in sys.modules:
            continue
        module = sys.modules[name] = types.ModuleType(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        exec(compile(text, name, "exec"), module.__dict__)
    return sys.modules


def gathered(*args, **kwargs):
    return args, kwargs


FINGERPRINTS = set()


def again(fingerprint):
    """What speaks against the numbers of an earlier call."""
    known = fingerprint in FINGERPRINTS
    FINGERPRINTS.add(fingerprint)
    return "the same numbers as in an earlier call" if known else ""


def drawn(x, results):
    """What speaks against the results of the call, which are drawn at random: they are judged by their distribution."""
    args, kwargs = {arguments}
    operators = loaded(SOURCES)["{home}.distribution.operators"]
    return operators.what_is_wrong({operator!r}, {fills!r}, args, kwargs, results, seen=again)
'''


def drawn_source(name: str, arguments: str) -> str:
    """Defines `drawn`, for the operator of that name; `arguments`: source of a call of `gathered` with those of the call."""
    operator, fills = operator_of(name)
    texts = {_NEW_HOME: "", **{f"{_NEW_HOME}.{module}": _text(module) for module in _MODULES}}
    entries = "".join(f"    {module!r}: r'''{text}''',\n" for module, text in texts.items())
    loader = _LOADER.format(arguments=arguments, home=_NEW_HOME, operator=operator, fills=fills)
    return f"\n# How random numbers are judged.\nSOURCES = {{\n{entries}}}\n\n{loader}"


def _text(module: str) -> str:
    if module == "distribution":  # its own code names what only op_tools has
        return ""
    text = inspect.getsource(importlib.import_module(f"{_HOME}.{module}"))
    assert "'''" not in text
    return text.replace(f"{_HOME}.", f"{_NEW_HOME}.")
