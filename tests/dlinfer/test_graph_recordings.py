"""The backend 'cudagraphs': with a recorder that stands for the device here, and with CUDA where there is one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from paged_decoder import Decoder, Step, make_step, new_caches

import dlinfer.graph
from dlinfer.graph import Backend, GraphError, cuda_graphs, mark_fixed
from dlinfer.graph.cuda_graphs import RecordedGraph
from dlinfer.vendors.dispatch import RESOLVED

pytestmark = pytest.mark.unit


class Recorder:
    """Replays by calling again, into the same memory of results, as a device would. Recording itself changes nothing."""

    device = "cpu"

    def __init__(self) -> None:
        self.prepared = self.recorded = self.replayed = 0
        self.failing = False

    def prepare(self, call: Callable[[], Any]) -> Any:
        self.prepared += 1
        return call()

    def record(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        results: list[Any] = []

        def replay() -> None:
            self.replayed += 1
            for result, value in zip(results, call(), strict=True):
                result.copy_(value)

        # What a step would write while it is recorded must not stay: only replaying does something.
        with _undone():
            results.extend(torch.full_like(value, float("nan")) for value in call())
        return replay, results


class _undone(torch.utils._python_dispatch.TorchDispatchMode):
    """Puts back what dlinfer's operators wrote."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace != "dlinfer" or not function._schema.is_mutable:
            return function(*args, **(kwargs or {}))
        written = [
            value
            for argument, value in zip(function._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write and value is not None
        ]
        before = [value.clone() for value in written]
        result = function(*args, **(kwargs or {}))
        for value, old in zip(written, before, strict=True):
            value.copy_(old)
        return result


class Recorded:
    """A decoder with caches, recorded."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.made: list[RecordedGraph] = []
        self.model = Decoder(1)
        self.caches, self.twins = new_caches(1), new_caches(1)
        mark_fixed(self.caches[0])
        self.graph = dlinfer.graph.compile(self.model, Backend("recorded", self._compile, fixed_sizes=True))

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> RecordedGraph:
        self.made.append(RecordedGraph(graph, inputs, self.recorder))
        return self.made[-1]

    def same(self, step: Step) -> None:
        got = self.graph(self.caches, step)
        with torch.no_grad():
            assert torch.equal(got, self.model(self.twins, step))
        assert all(torch.equal(*pair) for pair in zip(self.caches[0], self.twins[0], strict=True))


def test_a_recording_for_each_size_and_new_values_each_time() -> None:
    it = Recorded()
    for turn in range(3):
        for batch in (2, 4, 1):
            it.same(_bounded(batch, 16 - turn))
    assert len(it.graph.graphs) == 1
    assert (it.recorder.prepared, it.recorder.recorded, it.recorder.replayed) == (3, 3, 6)


def _bounded(batch: int, longest: int) -> Step:
    """Lengths that change while no size does: the table has room for 16 keys, and that is the bound."""
    return replace(make_step(batch, longest, columns=4), longest=16)


def test_results_stay_when_the_next_step_is_replayed() -> None:
    it = Recorded()
    steps = [_bounded(2, longest) for longest in (9, 10, 11)]
    it.graph(it.caches, steps[0])
    first = it.graph(it.caches, steps[1])
    kept = first.clone()
    it.graph(it.caches, steps[2])
    assert torch.equal(first, kept)


def test_weights_and_caches_are_used_in_place_and_other_inputs_are_copied() -> None:
    it = Recorded()
    step = _bounded(2, 9)
    it.same(step)
    (recording,) = it.made[0].recordings.values()
    weights = {value.data_ptr() for value in (*it.model.parameters(), *it.model.buffers())}
    caches = {cache.data_ptr() for cache in it.caches[0]}
    assert weights | caches == set(recording.addresses)
    assert len(recording.copies) == 4, "tokens, table, lengths and slots"
    with torch.no_grad():
        it.model.embedding.mul_(2)
    it.same(step)
    assert it.recorder.replayed == 1


def test_caches_that_moved_are_recorded_anew(caplog: pytest.LogCaptureFixture) -> None:
    it = Recorded()
    it.same(_bounded(2, 9))
    it.caches = [[cache.clone() for cache in it.caches[0]]]
    mark_fixed(it.caches[0])
    with caplog.at_level(logging.WARNING, "dlinfer.graph"):
        it.same(_bounded(2, 10))
    assert re.search(r"inputs have moved: l_args_0_0_\d_, l_args_0_0_\d_$", caplog.text, re.MULTILINE)
    it.same(_bounded(2, 11))
    assert (it.recorder.recorded, it.recorder.replayed) == (2, 1)


def test_too_many_sizes_run_without_a_recording(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_RECORDINGS", 2)
    it = Recorded()
    with caplog.at_level(logging.WARNING, "dlinfer.graph"):
        for batch in (1, 2, 3, 4, 1):
            it.same(_bounded(batch, 9))
    assert (it.recorder.recorded, it.recorder.replayed) == (2, 1)
    assert caplog.text.count("run without a recording") == 1


def test_what_cannot_be_recorded_says_so() -> None:
    it = Recorded()
    it.recorder.failing = True
    with pytest.raises(GraphError, match=r"cannot be recorded: RuntimeError: .*DLINFER_CHECK"):
        it.graph(it.caches, make_step(2, 9))
    it.recorder.device = "cuda"
    it.graph.reset()
    with pytest.raises(GraphError, match=r"input \w+ is on cpu, expected cuda"):
        it.graph(it.caches, make_step(2, 9))


def test_without_cuda_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GraphError, match="needs a cuda device"):
        dlinfer.graph.compile(Decoder(1), "cudagraphs")(new_caches(1), make_step(2, 9))


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="needs cuda and triton"
)
def test_cuda_graphs_on_a_device() -> None:
    """Tokens of many steps, recorded for four sizes, beside the same steps without a graph."""
    model = Decoder(3).cuda()
    caches, twins = new_caches(3, device="cuda"), new_caches(3, device="cuda")
    mark_fixed(cache for pair in caches for cache in pair)
    graph = dlinfer.graph.compile(model, "cudagraphs")
    for longest in (3, 40, 41, 64):
        for batch in (1, 2, 4, 8):
            step = replace(make_step(batch, longest, columns=16), longest=64).to("cuda")
            got = graph(caches, step)
            with torch.no_grad():
                wanted = model(twins, step)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    for one, other in zip(caches, twins, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(graph.graphs) == 1
    assert RESOLVED[("paged_decode_attention", "cuda")].vendor != "ref"
