"""What happened to a function's graphs is shown: as text, as a page, on the command line and in DICP_DUMP_DIR."""

from __future__ import annotations

import logging
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from dicp_small_backend import SmallBackend

import dicp
from dicp.cli import main
from dicp.errors import CompileError, UnknownBackendError
from dicp.graph.serialize import load_graph

pytestmark = pytest.mark.unit

MODELS = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
    def forward(self, x, times=2):
        return torch.sin(x * self.weight) * times

def doubled(x):
    return torch.relu(x * 2)

number = 3
"""


def mixed(x, y):
    z = x * y + x
    return torch.relu(torch.sin(z) * z), z


def test_steps_and_reasons(small):
    x, y = torch.randn(3, 4), torch.randn(4)
    found = dicp.explain(mixed, x, y, backend="smallgraph")
    [graph] = found.graphs
    assert (graph.kind, graph.operators, graph.compiled_operators) == ("inference", 5, 4)
    assert [step.compiled for step in graph.steps] == [True, False, True]
    assert graph.steps[1].reasons == {"sin": "smallgraph does not compile aten.sin.default"}
    assert graph.steps[0].artifacts["small.txt"] == "5 nodes"
    assert torch.equal(found.result[0], mixed(x, y)[0])
    text = str(found)
    assert text.startswith("mixed by smallgraph: 1 graph, 4 of 5 operators compiled, in 2 parts\n")
    assert "eager: sin: smallgraph does not compile aten.sin.default" in text and "5 nodes" in text
    assert "def call(args):" in text and "float32[3, 4] = aten.mul.Tensor" in text
    assert "def call" not in found.text(["steps"])


def test_only_changed_passes_are_shown(small, monkeypatch):
    def doubling(gm):
        for node in list(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)):
            node.target = torch.ops.aten.add.Tensor
        return gm

    def nothing(gm):
        return gm

    monkeypatch.setattr(SmallBackend, "passes", lambda self: (doubling, nothing))
    found = dicp.explain(lambda x: x * x, torch.randn(3), backend="smallgraph")
    assert [p.name for p in found.graphs[0].passes if p.changed] == ["AOTAutograd", "doubling"]
    assert "after the pass doubling" in str(found) and "after the pass nothing" not in str(found)


def test_breaks_gradients_and_warnings(small, monkeypatch):
    def f(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y * 3

    x = torch.ones(3, requires_grad=True)
    found = dicp.explain(f, x, backend="smallgraph", gradients=True)
    assert sorted(graph.kind for graph in found.graphs) == ["backward", "backward", "forward", "forward"]
    assert len(found.breaks) == 1 and x.grad is None and "graph break (1 times)" in str(found)

    def fail(self, graph):
        raise CompileError("no compiler")

    monkeypatch.setattr(SmallBackend, "compile", fail)
    found = dicp.explain(f, torch.ones(3), backend="smallgraph")
    assert (
        found.graphs[0].compiled_operators == 0
        and len(found.warnings) == 1
        and "no compiler" in found.warnings[0]
    )


def test_a_function_that_was_compiled_before_is_explained_too(small, compiled):
    f = compiled(mixed)
    x, y = torch.randn(3, 4), torch.randn(4)
    f(x, y)
    assert len(dicp.explain(mixed, x, y, backend="smallgraph").graphs) == 1
    calls = small.calls
    f(x, y)
    assert small.calls == calls + 2


def test_an_unknown_backend_is_an_error(small):
    with pytest.raises(UnknownBackendError, match="smallgraph"):
        dicp.explain(mixed, torch.ones(2), torch.ones(2), backend="smalgraph")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_a_drawing(small, tmp_path):
    found = dicp.explain(mixed, torch.randn(3, 4), torch.randn(4), backend="smallgraph")
    found.write_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    tags = Tags(text)
    assert not tags.open and tags.count["svg"] == 1
    assert tags.count["rect"] == 2 + 5 and tags.count["path"] == 9 - 1
    assert "smallgraph does not compile aten.sin.default" in text and "#b3261e" in text


def test_the_drawing_shows_what_is_fused(tmp_path):
    def block(x, w):
        h = torch.nn.functional.gelu(x)
        return torch.softmax(h @ w, -1) + h.sum(-1, keepdim=True)

    found = dicp.explain(block, torch.randn(8, 16), torch.randn(16, 16))
    [[step]] = [graph.steps for graph in found.graphs]
    kernels = {name: text.partition(", ")[2] for name, text in step.kernels.items()}
    assert set(kernels) == {node.name for node in step.nodes}
    assert (
        kernels["erf"] == "kernel 0"
        and kernels["mm"] == "a call"
        and kernels["exp"] == kernels["amax"] == "kernel 1"
    )
    found.write_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert all(part in text for part in set(step.kernels.values()))


def test_a_large_graph_is_drawn_by_its_parts(small, tmp_path):
    def f(x):
        for _ in range(600):
            x = x * 2
        return torch.sin(x) + 1

    found = dicp.explain(f, torch.randn(3), backend="smallgraph")
    found.write_page(tmp_path / "page.html")
    tags = Tags((tmp_path / "page.html").read_text())
    assert tags.count["rect"] == 4 and tags.count["path"] == 3


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "explained_models.py").write_text(MODELS)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["explain", *words, "--backend", "smallgraph"])
    return int(end.value.code)


def test_the_command(small, models, capsys):
    assert run("explained_models:doubled", "float32[2,3]") == 0
    assert "2 of 2 operators compiled, in 1 part" in capsys.readouterr().out
    assert (
        run(
            "explained_models.py:Block",
            "bfloat16[3,4]",
            "5",
            "--gradients",
            "--show",
            "all",
            "--page",
            "page.html",
        )
        == 1
    )
    text = capsys.readouterr().out
    assert "graph 1, backward" in text and "bfloat16[3, 4]" in text and (models / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explained_models"], "names no function"),
        (["explained_models:missing"], "has no 'missing'"),
        (["no_such_module:f"], "there is no module"),
        (["explained_models:number"], "is a int, expected a function"),
        (["explained_models:doubled", "flot32[2]"], "there is no dtype 'flot32'"),
        (["explained_models:doubled", "float32[2]", "--show", "everything"], "expected some of graph"),
    ],
)
def test_wrong_words(small, models, capsys, words, message):
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_everything_is_kept_in_the_dump_folder(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("DICP_DUMP_DIR", str(tmp_path))
    x, y = torch.randn(3, 4), torch.randn(4)
    f = compiled(mixed, dynamic=True)
    f(x, y)
    [folder] = tmp_path.iterdir()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"graph.pt", "steps.txt", "executor.py", "passes/00_AOTAutograd.txt", "step0/small.txt"} <= names
    assert "does not compile aten.sin.default" in (folder / "steps.txt").read_text()
    loaded = load_graph(folder / "graph.pt")
    names = [
        str(node.target).removeprefix("aten.") for node in loaded.graph.nodes if node.op == "call_function"
    ]
    kept = [name for name in names if not name.startswith("sym_")]
    assert kept == ["mul.Tensor", "add.Tensor", "sin.default", "mul.Tensor", "relu.default"]


def test_a_dump_folder_that_cannot_be_written_to_stops_nobody(compiled, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DICP_DUMP_DIR", str(tmp_path / "file"))
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "dicp"):
        assert torch.equal(compiled(lambda x: x * 2)(x), x * 2)
        assert torch.equal(compiled(lambda x: x * 3)(x), x * 3)
    assert len(caplog.records) == 1 and "DICP_DUMP_DIR" in caplog.text
