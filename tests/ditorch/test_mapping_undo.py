"""`ditorch.disable()` leaves nothing behind."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.device

# Compares everything reachable by name in torch, not just what the patches say they changed.
_SNAPSHOT = """
import sys, torch, torch_dipu

def snapshot():
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            for attribute, value in list(vars(module).items()):
                found[name, attribute] = id(value)
                if isinstance(value, type) and str(getattr(value, "__module__", "")).startswith("torch"):
                    for member, content in list(vars(value).items()):
                        if member not in ("__abstractmethods__", "_abc_impl", "__annotations_cache__"):
                            found[name, attribute, member] = id(content)
    found["meta_path"] = [id(entry) for entry in sys.meta_path]
    found["packages"] = [id(entry) for entry in torch.serialization._package_registry]
    found["builtins"] = dict(torch.jit._builtins._get_builtin_table())
    return found

def difference(before, after):
    return sorted(str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
"""


def test_undo_is_exact_and_both_directions_are_idempotent(run_python) -> None:
    result = run_python(
        _SNAPSHOT
        + """
import ditorch                                   # switched off by the setting
ditorch.enable(); ditorch.disable()              # modules that the mapping imports are there now
torch.overrides.get_overridable_functions()
before = snapshot()
for round in range(2):
    ditorch.enable()
    mapped = snapshot()
    ditorch.enable()
    assert difference(mapped, snapshot()) == [], difference(mapped, snapshot())
    print("changed:", len(difference(before, mapped)) > 150)
    assert torch.device("cuda").type == "dipu"
    ditorch.disable()
    ditorch.disable()
    print("left:", difference(before, snapshot()))
assert torch.device("cuda").type == "cuda" and type(torch.device) is type
assert torch.overrides.resolve_name(torch.Tensor.to) == "torch.Tensor.to"
assert torch.UntypedStorage(4).nbytes() == 4
try:
    torch.zeros(1, device="cuda")
except (AssertionError, RuntimeError) as error:
    print("as before:", type(error).__name__)
""",
        DITORCH_DISABLE_MOCK="1",
    )
    assert result.stdout.count("changed: True") == 2
    assert result.stdout.count("left: []") == 2
    assert "as before:" in result.stdout


def test_undo_with_the_compiler_loaded(run_python) -> None:
    result = run_python(
        _SNAPSHOT
        + """
import ditorch, torch._dynamo
import torch._dynamo.variables.torch as variables
def tables():
    return dict(torch._dynamo.trace_rules.get_torch_obj_rule_map()), dict(variables.constant_fold_functions)
ditorch.enable(); ditorch.disable()
before, tables_before = snapshot(), tables()
ditorch.enable()
assert torch.cuda.is_available in variables.constant_fold_functions
ditorch.disable()
print("left:", difference(before, snapshot()), tables() == tables_before)
""",
        DITORCH_DISABLE_MOCK="1",
    )
    assert "left: [] True" in result.stdout
