"""Runs vLLM's engine through dlinfer and transformers beside it; run by `test_vllm_engine` in a process of its own.

Arguments: a folder of a model. Prints a JSON object: tokens of both, and which operators of dlinfer ran.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from dlinfer.interface import OPERATORS
from dlinfer.vendors import Vendor, using
from dlinfer.vendors.dispatch import resolve

NEW = 12
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 256,
    "kv_cache_memory_bytes": 1 << 24,
    "block_size": 16,
    # Prompts are longer than what one step takes: they are prefilled in chunks, beside sequences that decode.
    "max_num_batched_tokens": 32,
    "max_num_seqs": 4,
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
}


def prompts() -> list[list[int]]:
    """Several lengths; the last two begin alike."""
    random = torch.Generator().manual_seed(0)
    drawn = [torch.randint(3, 500, (length,), generator=random).tolist() for length in (1, 5, 16, 33, 70, 90)]
    return [*drawn, drawn[-1][:80] + drawn[1]]


def counting(calls: Counter[str]) -> Vendor:
    """The kernels that serve the CPU, counted. (vLLM hides attention and experts from torch's own modes.)"""

    def counted(name: str) -> Callable[..., Any]:
        kernel = resolve(name, "cpu").kernel

        def run(*args: Any) -> Any:
            calls[name] += 1
            return kernel(*args)

        return run

    return Vendor(
        name="counting", version="1", kernels={name: counted(name) for name in OPERATORS}, values="always"
    )


def through_vllm(folder: str) -> list[list[list[int]]]:
    """Greedy tokens, twice: the second time every prompt is in the prefix cache."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=folder, **SETTINGS)
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    return [
        [list(answer.outputs[0].token_ids) for answer in engine.generate(asked, greedy, use_tqdm=False)]
        for _ in range(2)
    ]


def through_transformers(folder: str) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = []
    for prompt in prompts():
        with torch.no_grad():
            found = model.generate(
                torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        tokens.append(found[0, len(prompt) :].tolist())
    return tokens


def main() -> None:
    calls: Counter[str] = Counter()
    with using(counting(calls)):
        once, again = through_vllm(sys.argv[1])
    answer = {
        "once": once,
        "again": again,
        "right": through_transformers(sys.argv[1]),
        "calls": calls,
    }
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
