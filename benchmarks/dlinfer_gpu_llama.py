"""Decode of a llama of 1B parameters, random weights: transformers' generate, and a loop over dlinfer's operators.

transformers is timed by its own `generate`: the time of 36 new tokens less that of 4, so that the prompt does not count. The
other side has the same weights and the same keys, and is timed eager and as a CUDA graph. Both sides' logits are compared
with those of the same model in float32.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dlinfer_gpu_decoder import PagedDecoder
from gpu_timing import in_turn, recorded
from report import Case, Options

SHORT, LONG = 4, 36
TIMES_FASTER = 1 / 3
# The error of logits may be this much larger than transformers' own: both round to bfloat16, at different places.
OF_ITS_ERROR = 1.5


def _model(device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128256,
    }
    if device.type == "cpu":
        sizes = {
            **sizes,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 320,
        }
        sizes = {**sizes, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256}
    config = LlamaConfig(**sizes, max_position_embeddings=8192, attn_implementation="sdpa")
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = None
    return model.to(torch.bfloat16).eval()


class _Generate:
    """Seconds of a decode step inside of transformers' generate."""

    def __init__(self, model: Any, prompt: Tensor, **settings: Any) -> None:
        self._model, self._prompt, self._settings = model, prompt, settings

    def seconds(self, new: int) -> float:
        _wait(self._prompt.device)
        begin = time.perf_counter()
        self._model.generate(
            self._prompt,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            **self._settings,
        )
        _wait(self._prompt.device)
        return time.perf_counter() - begin

    def step(self) -> float:
        return (self.seconds(LONG) - self.seconds(SHORT)) / (LONG - SHORT)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _logits(model: Any, prompt: Tensor, decoder: PagedDecoder) -> tuple[Tensor, Tensor, Tensor]:
    """Of the token after the prompt: transformers', the loop's, and those of float32. Leaves the decoder full of keys."""
    from transformers import DynamicCache

    first = model(prompt, use_cache=True, logits_to_keep=1)
    token = first.logits[:, -1].argmax(-1)
    cache = first.past_key_values
    keys = [layer.keys.clone() for layer in cache.layers]
    values = [layer.values.clone() for layer in cache.layers]
    theirs = model(token.unsqueeze(1), past_key_values=cache, use_cache=True).logits[:, -1]
    del cache, first
    decoder.fill(keys, values)
    decoder.tokens.copy_(token)
    mine = decoder.step()
    upcast, upcast_cache = copy.deepcopy(model).float(), DynamicCache()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        upcast_cache.update(key.float(), value.float(), number)
    exact = upcast(token.unsqueeze(1), past_key_values=upcast_cache, use_cache=True).logits[:, -1]
    return theirs, mine, exact


def _error_case(theirs: Tensor, mine: Tensor, exact: Tensor) -> Case:
    errors = [float((logits.float() - exact).square().mean().sqrt()) for logits in (mine, theirs)]
    size = float(exact.square().mean().sqrt())
    cells = [f"{errors[0] / size:.2e}", f"{errors[1] / size:.2e}", "error of logits"]
    raw = {"error": errors[0], "error_of_transformers": errors[1], "size_of_logits": size}
    return Case("llama 1B: logits beside float32", errors[0] / errors[1], cells, OF_ITS_ERROR, raw)


def _baselines(model: Any, prompt: Tensor, options: Options) -> Iterator[tuple[str, list[float]]]:
    kinds: dict[str, dict[str, Any]] = {
        "generate": {},
        "generate, static cache": {"cache_implementation": "static", "disable_compile": True},
    }
    if not options.quick and prompt.device.type == "cuda":
        # transformers compiles the model by itself for such a cache.
        kinds["generate, static cache, compiled"] = {"cache_implementation": "static"}
    for name, settings in kinds.items():
        options.say(f"transformers, {name} ...")
        side = _Generate(model, prompt, **settings)
        try:
            side.seconds(SHORT)
            yield name, [side.step() for _ in range(1 if options.quick else 3)]
        except (
            Exception
        ) as error:  # a way that this version of transformers does not have is left out, not fatal
            options.say(f"{name}: {type(error).__name__}: {str(error)[:200]}")


def cases(options: Options) -> Iterator[Case]:
    """One row for each way to decode."""
    device = torch.device(options.device)
    batch, context = (2, 40) if device.type == "cpu" else (32, 2048)
    options.say(f"llama of 1B, batch {batch}, context {context} ...")
    model = _model(device)
    prompt = torch.randint(0, model.config.vocab_size, (batch, context), device=device)
    decoder = PagedDecoder(model, batch, context + 64)
    yield _error_case(*_logits(model, prompt, decoder))

    def step() -> None:
        decoder.lengths.fill_(context)
        decoder.step()

    times = in_turn({"eager": step, "graph": recorded(step, device)}, device, 3 if options.quick else 9)
    beside = dict(_baselines(model, prompt, options))
    base = statistics.median(beside["generate"])
    for name, seconds in beside.items():
        took = statistics.median(seconds)
        cells = ["", f"{took * 1e3:.2f} ms", f"{batch / took:.0f} tokens/s"]
        yield Case(f"llama 1B: transformers, {name}", took / base, cells, None, {"seconds": seconds})
    for name, timed in times.items():
        cells = [
            f"{timed.median * 1e3:.2f} ms",
            f"{base * 1e3:.2f} ms",
            f"{batch / timed.median:.0f} tokens/s, {base / timed.median:.1f}x",
        ]
        raw = {
            "seconds": timed.rounds,
            "tokens_per_second": batch / timed.median,
            "times_faster": base / timed.median,
        }
        target = TIMES_FASTER if name == "graph" and device.type == "cuda" else None
        yield Case(f"llama 1B: dlinfer's operators, {name}", timed.median / base, cells, target, raw)
