"""docs/frameworks.md: its table is true, and its example of a new adapter works when it is put where it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from forked_programs import STANDINS, needs_no_card

import _ditorch
from _ditorch.adapters import all_adapters

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "docs/frameworks.md", ROOT / "docs/frameworks.zh-CN.md"]


def _example(document: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    return code


@pytest.mark.unit
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_the_table_is_true(document: Path) -> None:
    rows = {}
    for line in document.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        named = re.findall(r"`([a-z]+)`", cells[0])
        if named and len(cells) == 6:
            rows[named[0]] = cells
    assert list(rows) == [adapter.name for adapter in all_adapters()]
    for adapter in all_adapters():
        names, package, _, group, variable, _ = rows[adapter.name]
        assert re.findall(r"`(\w+)`", names) == [adapter.name, *adapter.aliases]
        assert package == adapter.package
        if adapter.process_group:
            assert group == adapter.process_group
        if adapter.visible_devices and adapter.name != "cuda":
            assert variable == f"`{adapter.visible_devices}`"
        for module in adapter.own_mappings[:1]:
            assert f"`{module}`" in document.read_text(encoding="utf-8")


@pytest.mark.unit
def test_both_languages_show_the_same_example() -> None:
    first, second = (_example(document) for document in DOCUMENTS)
    assert first == second


@pytest.mark.device
@pytest.mark.slow
@needs_no_card
def test_the_example_works(run_python, tmp_path: Path) -> None:
    """A copy of ditorch with the one file added, and a package for it: another stand-in under other names."""
    shutil.copytree(
        Path(_ditorch.__file__).parent, tmp_path / "_ditorch", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "_ditorch/adapters/abacus.py").write_text(_example(DOCUMENTS[0]), encoding="utf-8")
    (tmp_path / "torch_abacus").mkdir()
    names = {
        "torch_br": "torch_abacus",
        "supa": "abacus",
        "sccl": "accl",
        "SUPAGraph": "AbacusGraph",
        "SUPA": "ABACUS",
    }
    for source, copy in (("__init__.py", "__init__.py"), ("supa.py", "abacus.py")):
        text = (STANDINS / "torch_br" / source).read_text(encoding="utf-8")
        for old, new in names.items():
            text = text.replace(old, new)
        (tmp_path / "torch_abacus" / copy).write_text(text, encoding="utf-8")
    result = run_python(
        """
        import torch, ditorch
        from _ditorch.session import of_process
        x = torch.arange(3.0, device="cuda:1")
        torch.cuda.synchronize("cuda:1")
        print(x.device, (x * 2).tolist(), torch.cuda.CUDAGraph.__name__, torch.cuda.get_device_name(1))
        print(of_process().choice.reason, of_process().mapping.target.process_group)
        """,
        PYTHONPATH=f"{tmp_path}:{STANDINS}",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        DITORCH_DEVICE="abacus",
    )
    assert "ditorch.framework: torch_abacus:1.10.0" in result.stdout
    assert "abacus:1 [0.0, 2.0, 4.0] AbacusGraph Biren106M 1" in result.stdout
    assert "DITORCH_DEVICE=abacus accl" in result.stdout
