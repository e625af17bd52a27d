"""The denoiser of stable diffusion: that of STABLE_DIFFUSION_MODEL_DIR, or a small one of random weights."""

from ..common.model_tests import check_inference, check_training, modes
from ..common.models import unet


@modes
def test_inference(dynamic: bool) -> None:
    model, inputs = unet()
    check_inference(model, [inputs], dynamic)


@modes
def test_training(dynamic: bool) -> None:
    model, inputs = unet()
    check_training(model, inputs, lambda noise: noise.square().mean(), dynamic, steps=2)
