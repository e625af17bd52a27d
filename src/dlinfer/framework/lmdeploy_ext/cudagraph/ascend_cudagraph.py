"""The graph runner that LMDeploy asks for when `device_type` is ascend.

With `eager_mode=False` a decoding step is one graph (`dlinfer.graph`), which the backend of DLINFER_GRAPH_BACKEND runs.
Prefill runs eagerly: its shapes change with every prompt, and its kernels are large.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import torch
from lmdeploy.pytorch.backends.graph_runner import GraphRunner
from torch.nn.functional import pad

from dlinfer.graph import Backend, CompiledGraph, backends, mark_fixed
from dlinfer.graph import compile as compile_graph
from dlinfer.ops.cache import cache_layout

__all__ = ["AscendGraphRunner", "get_ascend_compatible_size"]

_LOG = logging.getLogger(__name__)


def get_ascend_compatible_size(n: int) -> int:
    """The batch size that a graph for `n` sequences is made for: `n` where one graph serves all sizes."""
    if backends.chosen() == backends.NO_GRAPH or not backends.find().fixed_sizes:
        return n
    return padded_size(n)


@functools.cache
def _warn_eager(backend: str, unknown: str) -> None:
    """Once for each reason."""
    _LOG.warning(
        "dlinfer: decoding runs eagerly, for backend %r needs padded batches, and these are unknown: %s",
        backend,
        unknown,
    )


class AscendGraphRunner(GraphRunner):  # type: ignore[misc]
    """Runs decoding steps as one graph, everything else eagerly."""

    #: How the backend's caches lie. Engines may follow one another in a process.
    cache_layout = "BSND"

    def __init__(
        self,
        model: torch.nn.Module,
        model_config: Any,
        cache_config: Any,
        backend_config: Any,
        device: torch.device,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, model_config, cache_config, backend_config, device, **kwargs)
        self.graph: CompiledGraph | None = None
        self._backend: Backend | None = None
        if not backend_config.eager_mode:
            self.graph = compile_graph(model)
            self._backend = self.graph.backend
        self._caches: Any = None

    def __call__(self, **kwargs: Any) -> Any:
        """One forward pass."""
        with cache_layout(self.cache_layout):
            return self._forward(**kwargs)

    def _forward(self, **kwargs: Any) -> Any:
        if self.graph is None or self._backend is None or not self._is_decoding(kwargs, self._backend):
            return self.model(**kwargs)
        self._fix(kwargs["past_key_values"])
        if not self._backend.fixed_sizes:
            return self.graph(**kwargs)
        wanted = self._runner_meta.padding_batch_size or kwargs["attn_metadata"].kv_seqlens.shape[0]
        size = next((size for size in self._sizes if size >= wanted), wanted)
        output = self.graph(**padded(kwargs, size))
        # The model knows where its outputs have their tokens.
        return self.model.get_outputs_cudagraph(self.model.make_output_buffers(output), **kwargs)

    def _is_decoding(self, inputs: dict[str, Any], backend: Backend) -> bool:
        """One new token for each sequence, in a model that does not refuse by itself."""
        supports = getattr(self.model, "support_cuda_graph", None)
        if supports is None or not inputs["attn_metadata"].is_decoding or not supports(**inputs):
            return False
        unknown = cannot_be_padded(inputs) if backend.fixed_sizes else []
        if unknown:
            _warn_eager(backend.name, ", ".join(unknown))
        return not unknown

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return sorted(self.get_capture_batch_sizes())

    def _fix(self, caches: list[list[torch.Tensor]]) -> None:
        """LMDeploy makes caches once; others come only after it put the engine to sleep."""
        if caches is not self._caches:
            mark_fixed(cache for layer in caches for cache in layer if isinstance(cache, torch.Tensor))
            self._caches = caches

    def get_capture_batch_sizes(self) -> list[int]:
        """What LMDeploy warms up with: all sizes, or one where a graph serves all."""
        if self._backend is None or not self._backend.fixed_sizes:
            return [self.cache_config.max_batches]
        if self.cache_config.cudagraph_capture_batch_sizes is not None:
            return super().get_capture_batch_sizes()
        most = self.cache_config.max_batches
        return sorted({min(get_ascend_compatible_size(n), most) for n in range(1, most + 1)})

    def reset(self) -> None:
        """Forgets the graph: weights or caches are new objects."""
        super().reset()
        self._caches = None
        if self.graph is not None:
            self.graph.reset()


# ---- steps padded to sizes that a graph was made for, for backends that prepare each size by itself ----

_TOKENS = {"input_ids": (0,), "position_ids": (0,), "mrope_position_ids": (0,), "inputs_embeds": (0, 0, 0)}
"""Arguments with something for each token, and what `pad` gets before the number of tokens: nothing for inner dimensions."""


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def padded_size(n: int) -> int:
    """Few sizes, and little wasted: powers of two up to 16, then multiples of 16 up to 256, then of 256."""
    if n <= 16:
        return _power_of_two(n)
    step = 16 if n <= 256 else 256
    return -(-n // step) * step


def padded(inputs: dict[str, Any], size: int) -> dict[str, Any]:
    """The arguments of a decoding step of `size` sequences, and of a number of blocks that is a power of two.

    What is added computes something that nobody reads: its sequences have no keys, and are written to no slot of the caches.
    Lengths are those on the device: what is recorded must not hold numbers of one step.
    """
    metadata = inputs["attn_metadata"]
    rows = size - metadata.kv_seqlens.shape[0]
    table = metadata.block_offsets
    columns = _power_of_two(table.shape[1])
    ends = torch.arange(size + 1, dtype=metadata.cu_seqlens_q.dtype, device=table.device)
    lengths = pad(metadata.kv_seqlens, (0, rows))
    changed = {
        "block_offsets": pad(table, (0, columns - table.shape[1], 0, rows)),
        "q_start_loc": ends[:-1],
        "q_seqlens": pad(metadata.q_seqlens, (0, rows), value=1),
        "cu_seqlens_q": ends,
        "cu_seqlens_q_cpu": ends,
        "kv_seqlens": lengths,
        "kv_seqlens_cpu": lengths,
        "kv_start_indices": pad(metadata.kv_start_indices, (0, rows), value=-1),
        # The most that the table has room for, not what the longest sequence of this step has.
        "max_kv_seq_len": columns * metadata.block_size,
        "kv_flatten_size": 0,
    }
    result = {**inputs, "attn_metadata": dataclasses.replace(metadata, **changed)}
    for name, before in _TOKENS.items():
        value = inputs.get(name)
        if value is not None:
            result[name] = pad(value, (*before, rows))
    return result


def cannot_be_padded(inputs: dict[str, Any]) -> list[str]:
    """Arguments that some models have and that this file does not know."""
    supported = {*_TOKENS, "attn_metadata", "past_key_values"}
    return [name for name, value in inputs.items() if value is not None and name not in supported]
