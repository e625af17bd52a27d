"""A program as users write it: LMDeploy's pipeline and nothing of dlinfer. Reads a task as JSON, writes what it saw.

Tests run it in a process of its own, because LMDeploy's device is a matter of the whole process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline

Step = tuple[bool, list[int], list[int]]
"""Decoding or not, the new tokens of each sequence, and the keys of each."""


def watch(steps: list[Step]) -> None:
    """Write down the lengths of every step, where LMDeploy hands them to its backend."""
    from lmdeploy.pytorch.backends.dlinfer.ascend import AscendOpsBackend

    original = AscendOpsBackend.update_step_context

    def update_step_context(context: Any) -> Any:
        steps.append((context.is_decoding, context.q_seqlens.tolist(), context.kv_seqlens.tolist()))
        return original(context)

    AscendOpsBackend.update_step_context = staticmethod(update_step_context)


def answers(pipe: Any, prompts: list[str], new_tokens: int) -> list[dict[str, Any]]:
    """Greedy tokens of all prompts, given at once; exactly so many of each."""
    config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, ignore_eos=True)
    return [
        {
            "tokens": answer.token_ids,
            "cached": answer.cached_tokens,
            "length": answer.input_token_len,
            "finish": answer.finish_reason,
        }
        for answer in pipe(prompts, gen_config=config, do_preprocess=False)
    ]


def fail_after(calls: int) -> None:
    """Let an operator raise what it raises on wrong arguments, after so many calls."""
    from dlinfer import ops
    from dlinfer.errors import DlinferArgumentError

    original = ops.paged_decode_attention
    left = iter(range(calls))

    def paged_decode_attention(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise DlinferArgumentError("paged_decode_attention", "block_table", "was broken by a test")
        return original(*args, **kwargs)

    ops.paged_decode_attention = paged_decode_attention


def main(task: dict[str, Any]) -> dict[str, Any]:
    steps: list[Step] = []
    rounds = []
    with pipeline(task["model"], PytorchEngineConfig(**task["engine"]), log_level="ERROR") as pipe:
        watch(steps)
        agent = pipe.async_engine.engine.executor.model_agent
        cache = agent.cache_engine.gpu_cache[0][0]
        # As text: asked for its type, the device has cuda's name.
        device, dtype = str(cache.device), str(cache.dtype)
        for number, prompts in enumerate(task["rounds"]):
            if number == task["failing_round"]:
                fail_after(100)
            started = time.process_time()
            found = answers(pipe, prompts, task["new_tokens"])
            rounds.append({"answers": found, "steps": list(steps), "seconds": time.process_time() - started})
            steps.clear()
        graph = getattr(agent.patched_model, "graph", None)
        graphs = 0 if graph is None else len(graph.graphs)
    return {"rounds": rounds, "device": device, "dtype": dtype, "graphs": graphs}


if __name__ == "__main__":
    result = main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")
