"""Llama: the checkpoint of LLAMA_MODEL_DIR, or two layers of random weights."""

from ..common.model_tests import check_inference, check_training, modes
from ..common.models import language_model, llama, tokens


@modes
def test_inference(dynamic: bool) -> None:
    check_inference(language_model("LLAMA_MODEL_DIR", llama), [[tokens(2, n)] for n in (7, 5, 12)], dynamic)


@modes
def test_training(dynamic: bool) -> None:
    check_training(llama(), [tokens(2, 9)], lambda logits: logits.square().mean(), dynamic)
