"""One graph for all batch sizes: how it is captured, that caches are written in place, and what is refused."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paged_decoder import BLOCK, Decoder, make_step, new_caches

import dlinfer.graph
from dicp import registry
from dlinfer.errors import DlinferArgumentError
from dlinfer.graph import Backend, GraphError, backends, mark_fixed
from dlinfer.graph.lowering import lowered
from dlinfer.settings import GRAPH_BACKEND

pytestmark = pytest.mark.unit


def _flat(caches: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [cache for pair in caches for cache in pair]


def _same(
    graph: Any, model: Decoder, caches: list[list[torch.Tensor]], twins: list[list[torch.Tensor]], step: Any
) -> None:
    """Results and all of the caches are those of the program without a graph."""
    got = graph(caches, step)
    with torch.no_grad():
        wanted = model(twins, step)
    assert torch.equal(got, wanted)
    assert all(torch.equal(one, other) for one, other in zip(_flat(caches), _flat(twins), strict=True))


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("first", [1, 3, 6])
def test_one_graph_for_all_batch_sizes_and_lengths(first: int, fixed: bool) -> None:
    """The first batch may be one, or as large as the number of heads: sizes that torch takes for others by default."""
    model = Decoder()
    caches, twins = new_caches(), new_caches()
    if fixed:
        mark_fixed(_flat(caches))
    graph = dlinfer.graph.compile(model)
    for batch in (first, *(range(1, 65) if first == 1 and fixed else (1, 2, 6, 17, 64))):
        _same(graph, model, caches, twins, make_step(batch, 1 + batch % 31))
    for longest in (1, 2, 5, 40, 127):
        _same(graph, model, caches, twins, make_step(4, longest))
    assert len(graph.graphs) == 1
    before = new_caches()
    assert not any(torch.equal(one, other) for one, other in zip(_flat(caches), _flat(before), strict=True))


def test_the_graph_holds_the_operators_and_writes_to_the_caches_only() -> None:
    graph = dlinfer.graph.compile(Decoder(3))
    graph(new_caches(3), make_step(4, 9))
    (captured,) = graph.graphs
    layer = [
        "add_rms_norm",
        "linear",
        "apply_rotary_pos_emb",
        "fill_kv_cache",
        "paged_decode_attention",
        "linear",
    ]
    assert captured.operators == 3 * [*layer, "add_rms_norm", "linear", "silu_and_mul", "linear"]
    assert captured.writes == {f"l_args_0_{layer}_{side}_" for layer in range(3) for side in range(2)}
    copying = {"clone", "copy_", "contiguous"}
    assert copying.isdisjoint(str(node.target) for node in captured.graph.graph.nodes)


def _targets(graph: torch.fx.GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


def test_aten_graphs_do_not_copy_caches() -> None:
    """torch's functional form would copy both caches in every layer; what the backend gets has no copy at all."""
    seen: list[Counter[str]] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(_targets(graph))
        return graph.forward

    model, caches, twins = Decoder(), new_caches(), new_caches()
    addresses = [cache.data_ptr() for cache in _flat(caches)]
    graph = dlinfer.graph.compile(model, Backend("seen", lowered(compiler)))
    for batch in (3, 1, 6, 20):
        _same(graph, model, caches, twins, make_step(batch, 11))
    assert [cache.data_ptr() for cache in _flat(caches)] == addresses
    assert len(seen) == 1
    assert seen[0]["dlinfer.fill_kv_cache.default"] == 2
    assert seen[0]["dlinfer.paged_decode_attention.default"] == 2
    copies = [name for name in seen[0] if "copy" in name or "clone" in name or "functional" in name]
    assert copies == []


@pytest.mark.parametrize("backend", ["aten", "aot_eager"])
def test_backends_give_the_same(backend: str) -> None:
    model, caches, twins = Decoder(1), new_caches(1), new_caches(1)
    graph = dlinfer.graph.compile(model, backend)
    for batch in (1, 2, 9):
        _same(graph, model, caches, twins, make_step(batch, 7))
    assert len(graph.graphs) == 1


def _written(run: Callable[..., torch.Tensor], model: Decoder, caches: Any, batch: int) -> list[list[int]]:
    """The tokens of greedy decoding, each step's being the input of the next."""
    tokens, found = torch.arange(batch), []
    for length in range(1, 9):
        step = make_step(batch, 12)
        last = torch.full((batch,), length - 1)
        slots = step.table.long().gather(1, (last // BLOCK).unsqueeze(1)).flatten() * BLOCK + last % BLOCK
        lengths = torch.full((batch,), length, dtype=torch.int32)
        step = dataclasses.replace(step, tokens=tokens, lengths=lengths, slots=slots, longest=length)
        tokens = (run(caches, step) @ model.embedding.T).argmax(-1)
        found.append(tokens.tolist())
    return found


@pytest.mark.parametrize("name", ["hostgraph", "tritongraph"])
def test_dicp_runs_the_decode_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the operators of dlinfer, which stay whole and write in place, its kernels; the tokens are those of eager."""
    try:
        compiler = backends.find(name)
        backend = registry.find(name)
    except ImportError as error:
        pytest.skip(str(error))
    if name == "tritongraph":
        pytest.importorskip("triton")
    if name == "tritongraph" and not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    compiled: list[Counter[str]] = []
    compile_part = backend.compile

    def counted(graph: torch.fx.GraphModule) -> Any:
        compiled.append(_targets(graph))
        return compile_part(graph)

    monkeypatch.setattr(backend, "compile", counted)
    model, caches, twins = Decoder(), new_caches(), new_caches()
    graph = dlinfer.graph.compile(model, compiler)
    addresses = [cache.data_ptr() for cache in _flat(caches)]
    for batch in (3, 1, 5):
        assert _written(graph, model, caches, batch) == _written(model, model, twins, batch)
    torch.testing.assert_close(_flat(caches), _flat(twins))
    assert [cache.data_ptr() for cache in _flat(caches)] == addresses
    assert len(graph.graphs) == 1 and graph.graphs[0].operators.count("fill_kv_cache") == 2
    parts = sum(compiled, Counter())
    assert parts["aten.cat.default"] and not parts["dlinfer.fill_kv_cache.default"]


def test_graphs_of_two_modules_of_one_class_are_apart() -> None:
    step = make_step(3, 6)
    models = [Decoder(1, seed) for seed in (1, 2)]
    graphs = [dlinfer.graph.compile(model) for model in models]
    for graph, model in zip(graphs, models, strict=True):
        _same(graph, model, new_caches(1), new_caches(1), step)
    for graph, model in zip(graphs, models, strict=True):
        with torch.no_grad():
            model.embedding.mul_(2)
        _same(graph, model, new_caches(1), new_caches(1), step)
        assert len(graph.graphs) == 1


def test_results_carry_no_gradients_and_inference_mode_works() -> None:
    model = Decoder(1)
    graph = dlinfer.graph.compile(model)
    assert not graph(new_caches(1), make_step(3, 6)).requires_grad
    with torch.inference_mode():
        _same(graph, model, new_caches(1), new_caches(1), make_step(2, 6))


def test_reset_captures_again() -> None:
    model = Decoder(1)
    graph = dlinfer.graph.compile(model)
    graph(new_caches(1), make_step(3, 6))
    model.layers.append(Decoder(1, 5).layers[0])
    graph.reset()
    assert graph.graphs == []
    _same(graph, model, new_caches(2), new_caches(2), make_step(2, 6))
    assert len(graph.graphs) == 1


def test_settings_of_torch_are_as_before() -> None:
    import torch.fx.experimental._config as settings

    def now() -> tuple[bool, ...]:
        return settings.use_duck_shape, settings.backed_size_oblivious, torch._dynamo.config.specialize_float

    before = now()
    dlinfer.graph.compile(Decoder(1))(new_caches(1), make_step(3, 6))
    with pytest.raises(GraphError):
        dlinfer.graph.compile(_branching)(torch.ones(3))
    assert now() == before


# ---- what is refused ----


def _branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return x + 1


def test_a_program_that_is_not_one_graph_is_named() -> None:
    with pytest.raises(GraphError) as caught:
        dlinfer.graph.compile(_branching)(torch.ones(3))
    text = str(caught.value)
    line = _branching.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in _branching" in text
    assert "Data-dependent" in text
    assert "DLINFER_GRAPH_BACKEND=none" in text and "eager_mode=True" in text


def test_a_backend_that_fails_is_named() -> None:
    def failing(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        raise OSError("no licence")

    with pytest.raises(
        GraphError, match="backend 'mine' failed with the graph of Decoder: OSError: no licence"
    ):
        dlinfer.graph.compile(Decoder(1), Backend("mine", failing))(new_caches(1), make_step(3, 6))


def test_wrong_arguments_are_named_at_the_first_call_and_later() -> None:
    graph = dlinfer.graph.compile(Decoder(1))
    wrong = [[cache[:, :, :2] for cache in pair] for pair in new_caches(1)]
    with pytest.raises(DlinferArgumentError, match="fill_kv_cache: key_cache: has 2 heads"):
        graph(wrong, make_step(3, 6))
    graph(new_caches(1), make_step(3, 6))
    step = make_step(3, 6)
    step.table += 1000
    with pytest.raises(DlinferArgumentError, match="block_table"):
        graph(new_caches(1), step)


def test_caches_that_change_their_shape(caplog: pytest.LogCaptureFixture) -> None:
    """A few graphs are made, and said; a graph for every call is an error that names what changed."""
    graph = dlinfer.graph.compile(Decoder(1), max_graphs=2)
    with caplog.at_level(logging.WARNING, "dlinfer.graph"):
        for blocks in (128, 256):
            caches = new_caches(1, blocks)
            mark_fixed(_flat(caches))
            graph(caches, make_step(3, 6, blocks=128))
    assert "another graph (2) of Decoder" in caplog.text
    caches = new_caches(1, 512)
    mark_fixed(_flat(caches))
    with pytest.raises(GraphError) as caught:
        graph(caches, make_step(3, 6, blocks=128))
    assert "more than 2 graphs" in str(caught.value)
    assert "args[0][0][1] was torch.float32 [256, 4, 3, 16]" in str(caught.value)
    assert "is torch.float32 [512, 4, 3, 16]" in str(caught.value)
    caches = new_caches(1, 128)
    mark_fixed(_flat(caches))
    graph(caches, make_step(2, 6, blocks=128))
    assert len(graph.graphs) == 2


@pytest.mark.parametrize("name", ["no_such_backend", ""])
def test_an_unknown_backend_is_refused(name: str) -> None:
    with pytest.raises(dlinfer.graph.UnknownBackendError) as caught:
        dlinfer.graph.compile(Decoder, name)
    assert repr(name) in str(caught.value)
    assert "none, eager, aten, cudagraphs" in str(caught.value)


def test_the_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GRAPH_BACKEND.name, "nonsense")
    with pytest.raises(dlinfer.graph.UnknownBackendError, match="DLINFER_GRAPH_BACKEND is 'nonsense'"):
        dlinfer.graph.compile(_branching)
    monkeypatch.setenv(GRAPH_BACKEND.name, "none")
    plain = dlinfer.graph.compile(_branching)
    assert torch.equal(plain(torch.ones(3)), torch.ones(3))
    assert plain.backend is None and plain.graphs == []
    assert dlinfer.graph.compile(_branching, "eager").backend is backends.find("eager")
    monkeypatch.setenv(GRAPH_BACKEND.name, " aten ")
    assert dlinfer.graph.compile(_branching).backend.name == "aten"
    monkeypatch.delenv(GRAPH_BACKEND.name)
    assert dlinfer.graph.compile(_branching).backend.name == "eager"


class _Point:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def load(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_packages_announce_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward

    points = [_Point("announced", run), _Point("odd", 3), _Point("broken", ImportError("no library"))]
    monkeypatch.setattr(backends, "entry_points", lambda group: points if group == backends.GROUP else [])
    backends._find.cache_clear()
    try:
        assert backends.find("announced") == Backend("announced", run)
        assert "announced" in backends.names()
        with pytest.raises(GraphError, match="'odd' is a int"):
            backends.find("odd")
        with pytest.raises(GraphError, match="'broken' cannot be loaded: ImportError: no library"):
            backends.find("broken")
    finally:
        backends._find.cache_clear()


def test_a_registered_backend_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_REGISTERED", {})
    mine = Backend("eager", lambda graph, inputs: graph.forward)
    dlinfer.graph.register(mine)
    assert backends.find("eager") is mine
    with pytest.raises(ValueError, match="cannot be called 'none'"):
        dlinfer.graph.register(Backend("none", mine.compiler))


def test_wrong_use_of_compile() -> None:
    with pytest.raises(TypeError, match="target is a int"):
        dlinfer.graph.compile(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_graphs is 0"):
        dlinfer.graph.compile(_branching, max_graphs=0)
