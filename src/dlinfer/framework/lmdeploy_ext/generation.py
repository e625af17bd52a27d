"""`pipe(prompts, request_output_len=256)`: the keyword of LMDeploy's earlier pipelines, kept for programs written with it.

LMDeploy 0.18 takes any keyword and drops those that it does not know, so such a program would run and answer at another length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlinfer.framework.lmdeploy_ext.device_types import OWN_DEVICE, serves

if TYPE_CHECKING:
    from lmdeploy import GenerationConfig

__all__ = ["install", "with_output_length"]

_KEYWORD = "request_output_len"


@functools.cache
def install() -> None:
    """Let the pipelines of this process understand the keyword; once."""
    from lmdeploy.pipeline import Pipeline

    # `Pipeline.__call__`, `batch_infer` and `chat` come down to these two.
    for name in ("infer", "stream_infer"):
        setattr(Pipeline, name, _understanding(getattr(Pipeline, name)))


def _understanding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _KEYWORD in kwargs and serves(getattr(self.backend_config, "device_type", OWN_DEVICE)):
            if "gen_config" not in kwargs:
                args, kwargs["gen_config"] = _without_config(method.__name__, args)
            kwargs["gen_config"] = with_output_length(kwargs["gen_config"], kwargs.pop(_KEYWORD))
        return method(self, *args, **kwargs)

    return call


def _without_config(name: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Take the generation config out of positional arguments, where it may be the last one given."""
    place = {"infer": 1, "stream_infer": 2}[name]
    if len(args) <= place:
        return args, None
    if len(args) > place + 1:
        raise TypeError(f"{name}: give the arguments after gen_config by name when {_KEYWORD} is given")
    return args[:place], args[place]


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
