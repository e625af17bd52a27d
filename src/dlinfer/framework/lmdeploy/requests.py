"""Requests that LMDeploy 0.18 does not refuse, and that end its engine: a prompt without tokens."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["refuse_empty_prompts", "survive_empty_prompts"]


@functools.cache
def refuse_empty_prompts() -> None:
    """Where requests come in: tell who asked."""
    from lmdeploy.serve.core.async_engine import AsyncEngine

    original = AsyncEngine._determine_gen_config

    @functools.wraps(original)
    def _determine_gen_config(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if len(input_ids) == 0:
            raise ValueError("The prompt has no tokens: write a text, or let the chat template make one.")
        return original(self, input_ids, *args, **kwargs)

    AsyncEngine._determine_gen_config = _determine_gen_config


@functools.cache
def survive_empty_prompts() -> None:
    """Where requests are worked on: `lmdeploy serve` lets them through to the engine, which dies of an assertion."""
    from lmdeploy.messages import ResponseType
    from lmdeploy.pytorch.engine.engine import Engine

    original = Engine._add_message

    @functools.wraps(original)
    def _add_message(self: Any, reqs: list[Any]) -> None:
        good = []
        for request in reqs:
            session = self.scheduler.get_session(request.data["session_id"])
            if len(request.data["token_ids"]) == 0 and session is not None and not session.sequences:
                self._response(request.resp, ResponseType.INPUT_LENGTH_ERROR)
            else:
                good.append(request)
        original(self, good)

    Engine._add_message = _add_message
