"""Fine-tuning: the checkpoint of LLAMA_FINETUNE_DIR, or two layers of random weights, learns the next token."""

import torch

from ..common.model_tests import check_training, modes
from ..common.models import language_model, llama, tokens


@modes
def test_finetune(dynamic: bool) -> None:
    given = tokens(2, 9)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        following = given[:, 1:].to(logits.device).flatten()
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), following)

    check_training(language_model("LLAMA_FINETUNE_DIR", llama), [given], loss, dynamic)
