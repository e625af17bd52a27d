"""Runs quantised checkpoints and caches of 8 bits through LMDeploy, beside the same arithmetic in transformers; writes JSON.

python tests/dlinfer/lmdeploy_quantised_worker.py OUT.json
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdeploy
import lmdeploy_models
import torch
from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy_jobs import Answer, write_answers
from lmdeploy_quantised_models import RoundedCache, awq, record, w8a8
from lmdeploy_worker import CALLS, PROMPTS, count_operators

NEW_TOKENS = 24
RECORD = "ASCEND_QUANT_RECORD_FILE"
#: Coarse, and no two alike: whoever takes another layer's scale, or values' for keys', writes other tokens.
SCALES = ((0.17, -9, 0.19, 3), (0.24, 4, 0.23, -7))
OTHER_SCALES = ((0.05, 0, 0.05, 0), (0.06, 0, 0.06, 0))


def engine(**settings: Any) -> PytorchEngineConfig:
    """The settings of all engines here; `eager_mode=False` decodes as a graph."""
    usual = {"device_type": "ascend", "num_gpu_blocks": 64, "session_len": 256, "max_batch_size": 4}
    return PytorchEngineConfig(**{**usual, "eager_mode": True, **settings})


def expected(model: Any, prompt: str, near: float, cache: Any = None, chunk: int | None = None) -> list[int]:
    """Tokens of transformers, up to the first that was nearly another: its score is closer than `near` to the second.

    There two correct programs may part ways, for one of them rounds in float16, or a number in the middle of two steps.
    """
    inputs = {"input_ids": torch.tensor([model.tokenizer(prompt).input_ids]), "past_key_values": cache}
    found = model.reference.generate(
        **inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
        output_scores=True, return_dict_in_generate=True, prefill_chunk_size=chunk,
    )  # fmt: skip
    best, second = torch.stack(found.scores, 1)[0].topk(2).values.unbind(-1)
    close = (best - second < near).tolist()
    tokens = found.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens[: close.index(True) if True in close else None]


def answers(folder: str, config: PytorchEngineConfig) -> Answer:
    """What LMDeploy writes after the prompts, in one batch; with which caches and operators."""
    CALLS.clear()
    with lmdeploy.pipeline(folder, config, log_level="ERROR") as pipe:
        endless = GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True)
        found = pipe(list(PROMPTS), gen_config=endless, do_preprocess=False)
        agent = pipe.async_engine.engine.executor.model_agent
        caches = [str(cache.dtype) for cache in agent.cache_engine.gpu_cache[0]]
        dtype = str(agent.model_config.dtype)
    return {"got": [a.token_ids for a in found], "operators": dict(CALLS), "caches": caches, "dtype": dtype}


def weights(make: Callable[[Path], Any], near: float, **settings: Any) -> Answer:
    """A checkpoint with quantised weights."""
    with tempfile.TemporaryDirectory() as folder:
        model = make(Path(folder))
        wanted = [expected(model, prompt, near) for prompt in PROMPTS]
        return {"expected": wanted, **answers(folder, engine(**settings))}


def caches(scales: Any, **settings: Any) -> Answer:
    """A checkpoint as it is, with caches of 8 bits; and what it writes without them.

    The second piece of a long prompt attends to what was kept of all, itself too.
    """
    chunk = settings.get("max_prefill_token_num")
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.llama3(Path(folder))
        path = Path(folder) / "record.txt"
        path.write_text(record(scales))
        os.environ[RECORD] = str(path)
        wanted = [expected(model, prompt, 0.02, RoundedCache(scales), chunk) for prompt in PROMPTS]
        plain = [model.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
        return {"expected": wanted, "plain": plain, **answers(folder, engine(quant_policy=8, **settings))}


def padding() -> Answer:
    """A model without quantisation that writes the token of padding, which LMDeploy alone would never choose."""
    prompt = "Tell me about number 38, please"
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.qwen2(Path(folder))
        wanted = model.greedy(prompt, 32)
        config = GenerationConfig(max_new_tokens=32, ignore_eos=True)
        with lmdeploy.pipeline(folder, engine(), log_level="ERROR") as pipe:
            got = pipe(prompt, gen_config=config, do_preprocess=False).token_ids
    return {"expected": wanted, "got": got, "token": model.tokenizer.pad_token_id}


def refusals() -> Answer:
    """What LMDeploy says before it ends the program."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda line: said.append(line.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lmdeploy").addHandler(handler)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        awq(Path(folder))
        os.environ.pop(RECORD, None)
        short = Path(folder) / "short.txt"
        short.write_text(record(SCALES[:1]) + "scale: 0.5 offset: 0\n")
        for name, settings, file in (
            ("4 bits", {"quant_policy": 4}, ""),
            ("float8", {"quant_policy": 16}, ""),
            ("no file", {"quant_policy": 8}, ""),
            ("no such file", {"quant_policy": 8}, "/nowhere/record.txt"),
            ("other layers", {"quant_policy": 8}, str(short)),
            ("on loading", {"model_format": "fp8"}, ""),
        ):
            os.environ[RECORD] = file
            found[name] = _refusal(said, folder, engine(**settings))
        config = json.loads((Path(folder) / "config.json").read_text())
        config["quantization_config"]["zero_point"] = False
        (Path(folder) / "config.json").write_text(json.dumps(config))
        found["no zeros"] = _refusal(said, folder, engine())
    return found


def _refusal(said: list[str], folder: str, config: PytorchEngineConfig) -> str:
    said.clear()
    try:
        lmdeploy.pipeline(folder, config, log_level="ERROR").close()
    except (SystemExit, ValueError) as error:
        return " ".join([*said, str(error)])
    return ""


def refused_weights() -> Answer:
    """What is said of settings in a checkpoint, without a checkpoint."""
    from dlinfer.framework.lmdeploy.quantisation import weight_problem

    four = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    eight = {"quant_method": "smooth_quant"}

    def said(setting: dict[str, Any] | None, **more: int) -> str:
        return weight_problem(type("Config", (), {"quantization_config": setting, **more})())

    return {
        "": [said(None), said(four), said(eight), said({**eight, "quant_dtype": "float8_e4m3fn"}),
             said(eight, num_local_experts=4), said({**four, "version": "GEMM"}),
             said({**four, "modules_to_not_convert": ["mlp"]}, num_experts=4)],
        "bits is 8": [said({**four, "bits": 8})],
        "group_size is -1": [said({**four, "group_size": -1})],
        "version is 'gemv'": [said({**four, "version": "gemv"})],
        "with experts": [said(four, num_experts=4), said({**eight, "quant_dtype": "float8_e4m3fn"}, num_experts=4)],
        "quant_dtype is 'float8_e5m2'": [said({**eight, "quant_dtype": "float8_e5m2"})],
        "quant_method is 'gptq'": [said({"quant_method": "gptq"})],
        "quant_method is 'fp8'": [said({"quant_method": "fp8"})],
    }  # fmt: skip


def main(out: Path) -> None:
    """Answer everything."""
    count_operators()
    jobs: dict[str, Callable[[], Answer]] = {
        # LMDeploy serves AWQ in float16.
        "awq": functools.partial(weights, awq, near=0.03, eager_mode=False),
        "int8": functools.partial(
            weights, lambda f: w8a8(f, lmdeploy_models.qwen2(f)), near=0.02, eager_mode=False
        ),
        "float8": functools.partial(
            weights, lambda f: w8a8(f, lmdeploy_models.llama3(f), torch.float8_e4m3fn), near=0.02
        ),
        "experts": functools.partial(weights, lambda f: w8a8(f, lmdeploy_models.mixtral(f)), near=0.02),
        "cache": functools.partial(caches, SCALES, max_prefill_token_num=64),
        "cache of another engine": functools.partial(caches, OTHER_SCALES, eager_mode=False),
        "padding": padding,
        "refusals": refusals,
        "refused weights": refused_weights,
    }
    write_answers(jobs, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
