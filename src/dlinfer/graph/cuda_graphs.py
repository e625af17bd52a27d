"""The backend 'cudagraphs': the captured graph is recorded once for each size, and then replayed by the device by itself.

Replaying takes no Python and no launches for single kernels. A recording holds addresses, so:

- what has to stay where it is (weights, caches, whatever the graph writes to) is used in place, and recorded anew if it moved;
- other inputs are copied into memory of the recording before each replay;
- results are copied out, for the next replay writes over them.

Each combination of sizes is a recording of its own: callers pad batches to a few sizes. Inputs on the CPU are refused, for
their values would be frozen into the recording.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dlinfer.errors import GraphError
from dlinfer.graph.backends import Backend, Runner, run_graph
from dlinfer.graph.writes import written_inputs

_LOG = logging.getLogger(__name__)
MOST_RECORDINGS = 256
"""Each holds memory of the device. More sizes than this run without a recording."""

Replay = Callable[[], None]


class Recorder(Protocol):
    """Records what a device does."""

    device: str
    """The type of device."""

    def prepare(self, call: Callable[[], Any]) -> Any:
        """Runs `call` as a recording would, so that everything lazy is done; gives its result."""

    def record(self, call: Callable[[], Any]) -> tuple[Replay, Any]:
        """How to do again what `call` does, and where its results will be."""


class CudaRecorder:
    """Records with CUDA graphs; all recordings share one pool of memory, for only one runs at a time."""

    device = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise GraphError(
                "backend 'cudagraphs' needs a cuda device, and torch finds none. Use backend 'eager'."
            )
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def prepare(self, call: Callable[[], Any]) -> Any:
        """On the stream that will record: libraries keep workspaces for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = call()
        stream = torch.cuda.current_stream()
        stream.wait_stream(self._stream)
        # Made on one stream and read on another: the memory must not be given away in between.
        tree_map_only(Tensor, lambda tensor: tensor.record_stream(stream), result)
        return result

    def record(self, call: Callable[[], Any]) -> tuple[Replay, Any]:
        """Nothing runs here: the device only notes what it is asked to do."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # thread_local: what other threads do on the device meanwhile is no part of this and no error.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            results = call()
        return graph.replay, results


@dataclass(frozen=True)
class _Recording:
    replay: Replay
    addresses: tuple[int, ...]
    """Where the inputs lie that are used in place."""
    copies: list[Tensor]
    """The recording's own memory for the other inputs."""
    results: Any


class RecordedGraph:
    """A captured graph as a function that records and replays."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list[Any], recorder: Recorder) -> None:
        self.recordings: dict[tuple[Any, ...], _Recording] = {}
        self._recorder = recorder
        self._run = run_graph(graph, inputs)
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._names = [node.name for node in placeholders]
        used = [bool(node.users) for node in placeholders]
        writes = written_inputs(graph)
        tensors = [index for index, value in enumerate(inputs) if isinstance(value, Tensor)]
        self._scalars = [index for index in range(len(inputs)) if index not in set(tensors)]
        self._fixed = [index for index in tensors if index in writes or _stays(inputs[index])]
        self._moving = [index for index in tensors if used[index] and index not in set(self._fixed)]
        for index in tensors:
            where = inputs[index].device
            if used[index] and where.type != recorder.device:
                raise GraphError(
                    f"backend 'cudagraphs': input {self._names[index]} is on {where}, expected {recorder.device}: the values"
                    " of other devices would be frozen into the recording. Move it, or use backend 'eager'."
                )
        self._warned = False

    def __call__(self, *args: Any) -> Any:
        """Replays the recording for these sizes; makes it at the first call."""
        sizes = tuple(args[index] for index in self._scalars)
        recording = self.recordings.get(sizes)
        if recording is None:
            return self._first(sizes, args)
        addresses = self._addresses(args)
        if recording.addresses != addresses:
            moved = zip(self._fixed, recording.addresses, addresses, strict=True)
            names = [self._names[index] for index, before, now in moved if before != now]
            _LOG.warning("dlinfer.graph: recording anew, for inputs have moved: %s", ", ".join(names[:4]))
            return self._first(sizes, args)
        for copy, index in zip(recording.copies, self._moving, strict=True):
            copy.copy_(args[index], non_blocking=True)
        recording.replay()
        return tree_map_only(Tensor, Tensor.clone, recording.results)

    def _addresses(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple([args[index].data_ptr() for index in self._fixed])

    def _first(self, sizes: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """Runs the step itself and gives its result, then records for the next: the step must not happen twice."""
        if sizes not in self.recordings and len(self.recordings) >= MOST_RECORDINGS:
            self._warn(sizes)
            return self._run(*args)
        own = list(args)
        # Memory that may be written in and out of inference mode.
        with torch.inference_mode(False):
            copies = [args[index].clone() for index in self._moving]
        for copy, index in zip(copies, self._moving, strict=True):
            own[index] = copy
        # With the recording's own memory: kernels that are compiled for an alignment are compiled here, not while recording.
        results = tree_map_only(Tensor, Tensor.clone, self._recorder.prepare(lambda: self._run(*own)))
        try:
            replay, outputs = self._recorder.record(lambda: self._run(*own))
        except Exception as error:
            raise GraphError(
                f"backend 'cudagraphs': this step cannot be recorded: {type(error).__name__}: {error}. Kernels that read values"
                " on the CPU cannot be: the vendor 'ref' checks lengths and tables, and so does DLINFER_CHECK=1. Use a vendor"
                " with kernels for the device, or backend 'eager'."
            ) from error
        self.recordings[sizes] = _Recording(replay, self._addresses(args), copies, outputs)
        return results

    def _warn(self, sizes: tuple[Any, ...]) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "dlinfer.graph: %d sizes are recorded; others run without a recording (now %s). Pad batches and block tables"
                " to a few sizes, and give a bound for lengths instead of the longest of each step.",
                MOST_RECORDINGS,
                sizes,
            )


def _stays(value: Tensor) -> bool:
    """A weight, a buffer of a module, or what `mark_fixed` marked."""
    # The mark that torch itself puts on tensors whose address does not change (mark_static_address).
    return (
        isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _compile(graph: torch.fx.GraphModule, inputs: list[Any]) -> Runner:
    return RecordedGraph(graph, inputs, CudaRecorder())


BACKEND = Backend("cudagraphs", _compile, fixed_sizes=True)
