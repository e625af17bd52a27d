"""What requests ask for and LMDeploy 0.18 does not do: `request_output_len`, prompts without tokens, seeds."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dlinfer.framework.lmdeploy.devices import OWN_DEVICE, serves
from dlinfer.framework.lmdeploy.replacing import around

if TYPE_CHECKING:
    from lmdeploy import GenerationConfig


@functools.cache
def install() -> None:
    """Once in a process."""
    understand_output_length()
    refuse_empty_prompts()
    survive_empty_prompts()
    follow_seeds()


# ---- `pipe(prompts, request_output_len=256)`: the keyword of LMDeploy's earlier pipelines ----

_KEYWORD = "request_output_len"


@functools.cache
def understand_output_length() -> None:
    """Let the pipelines of this process understand the keyword; once."""
    from lmdeploy.pipeline import Pipeline

    # `Pipeline.__call__`, `batch_infer` and `chat` come down to these two.
    for name in ("infer", "stream_infer"):

        @around(Pipeline, name)
        def infer(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            if _KEYWORD in kwargs and serves(getattr(self.backend_config, "device_type", OWN_DEVICE)):
                if "gen_config" not in kwargs:
                    args, kwargs["gen_config"] = _without_config(original.__name__, args)
                kwargs["gen_config"] = with_output_length(kwargs["gen_config"], kwargs.pop(_KEYWORD))
            return original(self, *args, **kwargs)


def _without_config(name: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Take the generation config out of positional arguments, where it may be the last one given."""
    index = {"infer": 1, "stream_infer": 2}[name]
    if len(args) <= index:
        return args, None
    if len(args) > index + 1:
        raise TypeError(f"{name}: give the arguments after gen_config by name when {_KEYWORD} is given")
    return args[:index], args[index]


def with_output_length(
    config: GenerationConfig | list[GenerationConfig] | None, length: int
) -> GenerationConfig | list[GenerationConfig]:
    """The generation config, or each of several, with another limit on new tokens. The caller's own is left as it is."""
    from lmdeploy import GenerationConfig

    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ValueError(
            f"{_KEYWORD} is {length!r}; expected how many tokens to write at most, a whole number of at least 1"
        )
    if isinstance(config, list):
        return [dataclasses.replace(one, max_new_tokens=length) for one in config]
    return dataclasses.replace(config or GenerationConfig(), max_new_tokens=length)


# ---- prompts without tokens, which LMDeploy does not refuse and which end its engine ----


@functools.cache
def refuse_empty_prompts() -> None:
    """Where requests come in: tell who asked."""
    from lmdeploy.serve.core.async_engine import AsyncEngine

    @around(AsyncEngine, "_determine_gen_config")
    def determine(original: Any, self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if len(input_ids) == 0:
            raise ValueError("The prompt has no tokens: write a text, or let the chat template make one.")
        return original(self, input_ids, *args, **kwargs)


@functools.cache
def survive_empty_prompts() -> None:
    """Where requests are worked on: `lmdeploy serve` lets them through to the engine, which dies of an assertion."""
    from lmdeploy.messages import ResponseType
    from lmdeploy.pytorch.engine.engine import Engine

    @around(Engine, "_add_message")
    def add_message(original: Any, self: Any, reqs: list[Any]) -> None:
        good = []
        for request in reqs:
            session = self.scheduler.get_session(request.data["session_id"])
            if len(request.data["token_ids"]) == 0 and session is not None and not session.sequences:
                self._response(request.resp, ResponseType.INPUT_LENGTH_ERROR)
            else:
                good.append(request)
        original(self, good)


# ---- sampling that follows the seed of a request: LMDeploy's draw for devices other than cuda leaves the seed out ----

# Weyl's step and the two factors of the mixing function splitmix64, as signed numbers of 64 bits.
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


@functools.cache
def follow_seeds() -> None:
    """Let LMDeploy's engines of this process draw so."""
    from lmdeploy.pytorch.backends.default.multinomial_sampling import DefaultMultinomialSamplingImpl

    def forward(
        self: Any, scores: Tensor, seeds: Tensor, offsets: Tensor, indices: Tensor | None = None
    ) -> Tensor:
        chosen = draw(scores, seeds, offsets)
        return chosen if indices is None else indices.gather(1, chosen[:, None])[:, 0]

    DefaultMultinomialSamplingImpl.forward = forward


def draw(scores: Tensor, seeds: Tensor, offsets: Tensor) -> Tensor:
    """One index of each row, by probability. The same seed and offset draw the same, whatever the other rows are."""
    ends = scores.double().cumsum(-1)
    marks = (_numbers(seeds, offsets) * ends[:, -1])[:, None]
    # On the right of equal ends: an index of probability 0 is never chosen.
    return torch.searchsorted(ends, marks, right=True).clamp_(max=scores.shape[1] - 1)[:, 0]


def _numbers(seeds: Tensor, offsets: Tensor) -> Tensor:
    """A number in [0, 1) for each pair. An offset is the number of a draw, so seeds are mixed before it is added."""
    bits = _mixed(_mixed(seeds.to(torch.int64)) + offsets.to(torch.int64) * _STEP)
    return _right(bits, 11).double() * 2.0**-53


def _mixed(bits: Tensor) -> Tensor:
    bits = bits + _STEP
    bits = (bits ^ _right(bits, 30)) * _FIRST
    bits = (bits ^ _right(bits, 27)) * _SECOND
    return bits ^ _right(bits, 31)


def _right(bits: Tensor, count: int) -> Tensor:
    """A shift that brings in zeros; torch's own brings in the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
