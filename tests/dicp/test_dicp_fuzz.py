"""Random functions through the interpreter of loop programs and through compiled C++; `dicp_fuzz.py` goes on for longer."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from dicp_fuzz import problems_of
from dicp_graphs import Graph, random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fallback(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    rng = draw(st.randoms(use_true_random=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return random_graph(rng, draw(st.integers(1, 12)), draw(st.booleans()))


def quick(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@quick(8)
@given(graph=graphs())
def test_the_interpreter_gives_what_eager_gives(graph: Graph) -> None:
    assert not problems_of(graph, "reference"), graph.source


@quick(4)
@given(graph=graphs())
def test_compiled_code_gives_what_eager_gives(graph: Graph) -> None:
    assert not problems_of(graph, "hostgraph"), graph.source


def test_a_wrong_result_is_found() -> None:
    graph = random_graph(random.Random(3))
    wrong = [lambda *x: (), lambda *x: [t + 1 for t in graph.function()(*x)]]
    for function in wrong:
        assert graph.problems(function)

    def writes(*x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = graph.function()(*x)
        x[0].add_(1)
        return found

    assert any("afterwards" in problem for problem in graph.problems(writes))
