"""SmolLM2-135M with its real weights."""

from ..common.model_tests import check_inference, modes
from ..common.models import smollm2, tokens


@modes
def test_inference(dynamic: bool) -> None:
    check_inference(smollm2(), [[tokens(1, n, 4000)] for n in (6, 11)], dynamic)
