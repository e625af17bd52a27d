"""BERT: two layers of random weights."""

from ..common.model_tests import check_inference, check_training, modes
from ..common.models import bert, tokens


@modes
def test_inference(dynamic: bool) -> None:
    check_inference(bert(), [[tokens(2, n)] for n in (7, 5, 12)], dynamic)


@modes
def test_training(dynamic: bool) -> None:
    check_training(bert(), [tokens(2, 9)], lambda states: states.square().mean(), dynamic)
