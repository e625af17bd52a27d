"""Runs small models through LMDeploy and transformers and writes what both answered, as JSON.

A process of its own: the adaptor gives torch's names for cuda another meaning, which other tests must not see.

    python tests/dlinfer/lmdeploy_worker.py OUT.json
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdeploy
import lmdeploy_models
import lmdeploy_vision_models
from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy_jobs import Answer, write_answers

from dlinfer import ops

#: The last one is longer than two of LMDeploy's blocks.
PROMPTS = (
    "Shanghai is",
    "Please introduce China",
    "How are you?",
    "The quick brown fox jumps over the lazy dog. " * 3,
)
NEW_TOKENS = 32
CALLS: Counter[str] = Counter()


def count_operators() -> None:
    """LMDeploy's kernels look the operators up in dlinfer.ops at every call, so they can be counted there."""
    for name in ops.__all__:
        function = getattr(ops, name)

        @functools.wraps(function)
        def counted(
            *args: Any, _name: str = name, _function: Callable[..., Any] = function, **kwargs: Any
        ) -> Any:
            CALLS[_name] += 1
            return _function(*args, **kwargs)

        setattr(ops, name, counted)


@contextmanager
def served(model: Any, device: str = "ascend", chunk: int = 8192, **settings: Any) -> Iterator[Any]:
    """A pipeline of a saved model on the CPU."""
    config = PytorchEngineConfig(
        device_type=device,
        **{"num_gpu_blocks": 64, "session_len": 256, "max_batch_size": 4, "eager_mode": True} | settings,
        max_prefill_token_num=chunk,
    )
    with lmdeploy.pipeline(
        str(model.folder), config, trust_remote_code=model.remote_code, log_level="ERROR"
    ) as pipe:
        yield pipe


def languages(name: str, **settings: Any) -> Answer:
    """Four prompts in one batch, beside transformers with each alone."""
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.BUILDERS[name](Path(folder))
        expected = [model.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
        CALLS.clear()
        with served(model, **settings) as pipe:
            endless = GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True)
            answers = pipe(list(PROMPTS), gen_config=endless, do_preprocess=False)
            dtype = str(pipe.async_engine.engine.model_config.dtype)
    return {
        "expected": expected,
        "got": [a.token_ids for a in answers],
        "operators": dict(CALLS),
        "dtype": dtype,
    }


def images(name: str) -> Answer:
    """Questions about drawings; two differ in the drawing only."""
    asked = [("What is it?", "red"), ("What is it?", "blue"), ("Say more.", "green")]
    questions = [(text, lmdeploy_vision_models.drawing(colour)) for text, colour in asked]
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_vision_models.SEEING_BUILDERS[name](Path(folder))
        expected = [model.greedy(*question, NEW_TOKENS) for question in questions]
        CALLS.clear()
        with served(model) as pipe:
            answers = pipe(questions, gen_config=GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True))
    return {"expected": expected, "got": [a.token_ids for a in answers], "operators": dict(CALLS)}


def neighbours() -> Answer:
    """Two engines at a time in one process: their blocks have other sizes, and one of them uses graphs."""
    endless = GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        models = [
            lmdeploy_models.BUILDERS["llama3"](Path(one)),
            lmdeploy_models.BUILDERS["mixtral"](Path(two)),
        ]
        expected = [[model.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS] for model in models]
        small = served(models[0], block_size=16, num_gpu_blocks=128)
        with small as first, served(models[1], eager_mode=False) as second:
            turns = [(0, first), (1, second), (0, first), (1, second)]
            got = [
                [a.token_ids for a in pipe(list(PROMPTS), endless, do_preprocess=False)] for _, pipe in turns
            ]
    return {"expected": [expected[turn] for turn, _ in turns], "got": got}


def keywords() -> Answer:
    """The keywords of earlier pipelines: lengths that were written, and lengths that were read."""
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.llama3(Path(folder))
        question = list(PROMPTS[:2])
        endless = GenerationConfig(max_new_tokens=20, ignore_eos=True)
        with served(model) as pipe:
            plain = pipe(question, request_output_len=9, do_preprocess=False, gen_config=endless)
            chat = pipe(question, request_output_len=5, gen_config=[endless, endless])
            alone = pipe(question[0], endless, request_output_len=3, do_preprocess=False)
            default = pipe(question, request_output_len=4, do_preprocess=False)
            stream = list(pipe.stream_infer(question[0], request_output_len=6, gen_config=endless))
            refused = _refusals(pipe, question)
    template = "[user]{}[assistant]"
    return {
        "plain": [(answer.generate_token_len, answer.input_token_len) for answer in plain],
        "plain_input": [len(model.tokenizer(text).input_ids) for text in question],
        "plain_text": [answer.text for answer in plain],
        "expected_text": [
            model.tokenizer.decode(model.greedy(text, 9), skip_special_tokens=True) for text in question
        ],
        "chat": [(answer.generate_token_len, answer.input_token_len) for answer in chat],
        "chat_input": [len(model.tokenizer(template.format(text)).input_ids) for text in question],
        "alone": alone.generate_token_len,
        "default": [answer.generate_token_len for answer in default],
        "stream": sum(len(answer.token_ids) for answer in stream),
        "callers_config": endless.max_new_tokens,
        "refused": refused,
    }


def seeds() -> Answer:
    """Sampled answers by their seeds, alone and beside others; and a prompt without tokens between good ones."""

    def sampling(seed: int | None) -> GenerationConfig:
        return GenerationConfig(
            do_sample=True, top_k=40, random_seed=seed, max_new_tokens=12, ignore_eos=True
        )

    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.llama3(Path(folder))
        with served(model) as pipe:

            def written(prompts: list[str], *seeds: int | None) -> list[Any]:
                configs = [sampling(seed) for seed in seeds]
                return [a.token_ids for a in pipe(prompts, gen_config=configs, do_preprocess=False)]

            one, two = PROMPTS[:2]
            drawn = {
                "first": written([one], 1),
                "again": written([one], 1),
                "beside others": written([two, one, two], 5, 1, None)[1:2],
                "another seed": written([one], 2),
                "no seed": written([one], None),
                "no seed again": written([one], None),
            }
            empty = pipe("", gen_config=sampling(1), do_preprocess=False)
            after = written([one], 1)
    return {"drawn": drawn, "empty": [empty.finish_reason, empty.generate_token_len], "after": after}


def _refusals(pipe: Any, question: list[str]) -> list[str]:
    messages = []
    for wrong in (0, -3, 2.5, "many", True):
        try:
            pipe(question, request_output_len=wrong)
        except ValueError as error:
            messages.append(str(error))
    return messages


def main(out: Path) -> None:
    """Answer everything."""
    count_operators()
    jobs: dict[str, Callable[[], Answer]] = {
        **{name: functools.partial(languages, name) for name in lmdeploy_models.BUILDERS},
        **{name: functools.partial(images, name) for name in lmdeploy_vision_models.SEEING_BUILDERS},
        # The longest prompt comes in three pieces, each longer than the window.
        "mistral in pieces": functools.partial(languages, "mistral", chunk=64),
        "gemma2 in pieces": functools.partial(languages, "gemma2", chunk=64),
        # Their caches lie otherwise: camb's have 16 tokens in a block and heads before tokens.
        "llama3 on camb": functools.partial(languages, "llama3", device="camb"),
        "mixtral on maca": functools.partial(languages, "mixtral", device="maca"),
        "neighbours": neighbours,
        "keywords": keywords,
        "seeds": seeds,
    }
    write_answers(jobs, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
