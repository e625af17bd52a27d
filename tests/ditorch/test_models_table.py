"""The table of models: what it says of results that are equal, differ, are missing or failed, and that docs show it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "benchmarks") not in sys.path:
    sys.path.append(str(ROOT / "benchmarks"))

GOOD: dict[str, Any] = {
    "device": "cuda:0",
    "parameters": 3,
    "losses": [3.0, 2.0, 1.0],
    "generated": [4, 5, 6],
    "digests": {"a": "1", "b": "2"},
}


@pytest.fixture
def table() -> ModuleType:
    return importlib.import_module("models_table")


@pytest.fixture
def document() -> ModuleType:
    return importlib.import_module("models_document")


class TestTable:
    pytestmark = pytest.mark.unit

    def test_equal_results(self, table: ModuleType) -> None:
        found = table.compared("internlm2", GOOD, GOOD, GOOD)
        assert (found["status"], found["difference"], found["words"]) == ("same", 0, "equal")
        assert found["without_ditorch"] == "equal" and table.unmet(found) == 0
        assert not table.as_case("internlm2", "cuda", found).missed

    def test_every_difference_is_counted(self, table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = SimpleNamespace(status="fail", reason="1 element is off", error_over_bound=9.0)
        monkeypatch.setattr(table, "judge", lambda name, cpu, device: wrong)
        other = {**GOOD, "losses": [3.0, 2.0, 1.1], "generated": [4, 9, 6]}
        alone = {**other, "losses": [3.0, 2.0, 1.2], "digests": {"a": "1", "b": "7"}}
        found = table.compared("internlm2", GOOD, other, alone)
        assert found["status"] == "fail" and found["difference"] == pytest.approx(0.1)
        assert found["words"] == "differ from word 2 of 3"
        assert found["without_ditorch"] == "differ: losses, 1 of 2 weights, first b"
        assert table.unmet(found) == 3 and table.as_case("internlm2", "cuda", found).missed

    def test_models_without_words(self, table: ModuleType) -> None:
        for generated in (None, [0.5, 1.5]):
            result = {**GOOD, "generated": generated}
            assert table.words(result, result) == ""

    @pytest.mark.parametrize(
        ("result", "status", "reason"),
        [
            (
                {"missing": "cannot import name 'X'"},
                "missing",
                "not in this transformers: cannot import name 'X'",
            ),
            ({"error": "RuntimeError: no kernel"}, "error", "RuntimeError: no kernel"),
        ],
    )
    def test_models_without_results(
        self, table: ModuleType, result: dict[str, str], status: str, reason: str
    ) -> None:
        for sides in ((GOOD, result, None), (result, GOOD, None), (GOOD, GOOD, result)):
            found = table.compared("internlm2", *sides)
            assert (found["status"], found["reason"]) == (status, reason)
            assert table.as_case("internlm2", "cuda", found).missed, "what was not compared is not good"

    def test_unknown_device_is_explained(self, table: ModuleType) -> None:
        options = importlib.import_module("report").Options(device="toaster")
        with pytest.raises(SystemExit, match="--device toaster: expected some of dipu, reordered, cuda"):
            table.measure(options)

    def test_a_model_that_fails_does_not_stop_the_others(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        importlib.import_module("models_truth")  # brings the folder of the models into reach
        scripts = importlib.import_module("all_models")

        def load(name: str) -> Any:
            if name == "bert":
                raise ImportError("cannot import name 'BertForMaskedLM'")
            return importlib.import_module("internlm2").build if name == "internlm2" else broken

        def broken() -> Any:
            raise RuntimeError("no kernel\nand more")

        monkeypatch.setattr(scripts, "load", load)
        path = tmp_path / "results.json"
        with pytest.raises(SystemExit) as left:
            scripts.main(["vit", "bert", "internlm2", "--cpu", "--json", str(path)])
        assert left.value.code == 1
        found = json.loads(path.read_text())["models"]
        assert found["vit"] == {"error": "RuntimeError: no kernel"}
        assert found["bert"] == {"missing": "cannot import name 'BertForMaskedLM'"}
        assert len(found["internlm2"]["losses"]) == 3
        with pytest.raises(SystemExit) as left:
            scripts.main(["toaster"])
        assert left.value.code == 2 and "no such model: toaster" in capsys.readouterr().err


class TestDocument:
    pytestmark = pytest.mark.null

    @pytest.mark.parametrize("name", ["models.md", "models.zh-CN.md"])
    def test_shows_the_stored_results(self, name: str, document: ModuleType) -> None:
        path = ROOT / "docs" / name
        assert document.rendered(path) == path.read_text(), "run: python benchmarks/models_document.py"

    def test_all_models_are_good_on_the_simulated_chip(self, document: ModuleType) -> None:
        cases = document.stored()["dipu"]["cases"]
        assert len(cases) == 13
        assert all(case["status"] == "same" and case["words"] in ("", "equal") for case in cases.values())

    def test_cells(self, document: ModuleType) -> None:
        words = document.WORDS["models.md"]
        assert set(words) == set(document.WORDS["models.zh-CN.md"])
        assert document.cell(None, words) == "not run"
        assert document.cell({"status": "missing"}, words) == "not in this transformers"
        case = {
            "losses": [1.25],
            "difference": 2e-7,
            "status": "fail",
            "words": "differ",
            "without_ditorch": "differ",
        }
        shown = document.cell(case, words)
        assert shown == "1.250000; 2e-07, **wrong**; **words differ**; **other bits without ditorch**"

    def test_a_document_without_the_place_is_refused(self, document: ModuleType, tmp_path: Path) -> None:
        path = tmp_path / "models.md"
        path.write_text("no table\n")
        with pytest.raises(ValueError, match="expected the lines"):
            document.rendered(path)
