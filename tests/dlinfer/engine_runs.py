"""Prompts for LMDeploy's engine, what transformers answers to them, and running `engine_program.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from forked_python import run_python as run_forked
from lmdeploy_runs import LMDEPLOY

NEW_TOKENS = 64
CHUNK = 64
"""Longer prompts are prefilled in parts of so many tokens."""
BLOCK = 16

_STORY = (
    "The old lighthouse stood at the end of a long stone pier. Every evening its keeper climbed the two hundred steps to the "
    "lamp, cleaned the glass, and wrote a line about the weather into a thick book. Ships came from far away, carrying tea, "
    "timber, wool and letters. Some captains never saw the keeper, but all of them knew his light. One winter the sea froze, "
    "and for the first time in forty years no ship came at all. The keeper went on climbing the steps. He lit the lamp, "
    "cleaned the glass, and wrote: clear sky, no wind, no ships. On the seventh day a child from the village walked over the "
    "ice to ask him why he still lit the lamp when nobody could see it. "
)
SHORT = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "My favourite season is autumn because",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the year 1969,",
    "To make a good cup of tea, you first",
    "Q: Why is the sky blue?\nA:",
    "She opened the door and",
    "A haiku about rain:\n",
    "import numpy as np\n",
    "<|im_start|>user\nName three animals.<|im_end|>\n<|im_start|>assistant\n",
    "List of countries in Europe:\n1.",
    "An electron is",
    "Shopping list:\n- milk\n-",
)
# Longer than a chunk, with the same beginning.
LONG = (
    _STORY + "The keeper answered:",
    _STORY + "The child did not understand, so",
    _STORY[:330] + " In spring",
)
PROMPTS = (*SHORT, *LONG)
_MARGIN = 0.005
_SETTINGS = {"DLINFER_DEVICE": "cpu", "LMDEPLOY_SKIP_WARMUP": "1", "OMP_NUM_THREADS": "1"}


class Greedy(NamedTuple):
    """What a model writes after a prompt, and how many tokens the prompt has."""

    tokens: list[int]
    length: int


def greedy_of_transformers(folder: Path, written: Mapping[str, Sequence[int]]) -> dict[str, Greedy]:
    """The best tokens in float32 after each prompt, each one given those that were written before it.

    One pass over prompt and answer says as much as `generate`, which takes a pass for each token: where the best tokens are
    those that were written, greedy search writes just them; where not, the first that differs is its.

    The token that ends an answer is not allowed, as LMDeploy does where it is told to go on. No prompt may come near a tie:
    two correct programs that round differently would then part ways. It is checked here, so that other weights or another
    transformers are told from an error of the engine.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = {}
    for prompt, tokens in written.items():
        given = tokenizer(prompt).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([[*given, *tokens[:-1]]]), logits_to_keep=len(tokens)).logits[0]
        logits[:, model.generation_config.eos_token_id] = -torch.inf
        values, best = logits.topk(2)
        if best[:, 0].tolist() == list(tokens):
            assert (values[:, 0] - values[:, 1]).min() > _MARGIN, "a near tie: choose other prompts"
        found[prompt] = Greedy(best[:, 0].tolist(), len(given))
    return found


def run_engine(
    folder: Path,
    scratch: Path,
    rounds: list[list[str]],
    *,
    environment: dict[str, str] | None = None,
    new_tokens: int = NEW_TOKENS,
    failing_round: int | None = None,
    **engine: Any,
) -> dict[str, Any]:
    """Let LMDeploy answer `rounds` one after the other, in a new process; what `engine_program.main` returns."""
    settings = {
        "device_type": "ascend", "session_len": 512, "max_batch_size": 8, "block_size": BLOCK, "num_gpu_blocks": 256,
        "max_prefill_token_num": CHUNK, "enable_prefix_caching": True, "eager_mode": True,
    }  # fmt: skip
    task = {
        "model": str(folder),
        "engine": settings | engine,
        "rounds": rounds,
        "new_tokens": new_tokens,
        "failing_round": failing_round,
    }
    question, answer = scratch / "task.json", scratch / "answer.json"
    question.write_text(json.dumps(task), encoding="utf-8")
    done = run_program(question, answer, **environment or {})
    assert done.returncode == 0, done.stdout[-4000:]
    return {**json.loads(answer.read_text(encoding="utf-8")), "log": done.stdout}


def run_program(question: Path, answer: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `engine_program.py` to its end."""
    program = Path(__file__).with_name("engine_program.py")
    return run_python(str(program), str(question), str(answer), **environment)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python with the tests' settings to its end; both of its streams are in `stdout`."""
    settings = {**os.environ, **_SETTINGS, **environment}
    done = run_forked(*arguments, env=settings, timeout=800, preload=LMDEPLOY)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout + done.stderr)
