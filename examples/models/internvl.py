"""InternVL: a vision transformer whose patches, four at a time, become tokens of a language model."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import InternVLConfig, InternVLForConditionalGeneration, Qwen2Config
from transformers.models.internvl import InternVLVisionConfig

from language import SIZES, VOCABULARY
from training import Experiment, Sample, greedy, main, own_loss, token_samples

IMAGE_TOKEN = 2
IMAGE_SIZE, PATCH_SIZE = 32, 4
IMAGE_POSITIONS = (IMAGE_SIZE // PATCH_SIZE // 2) ** 2


def with_image(text: Tensor) -> Sample:
    """A picture, the positions that its tokens take, then the text, which alone is to be learnt."""
    image = torch.full((IMAGE_POSITIONS,), IMAGE_TOKEN)
    return {
        "input_ids": torch.cat([image, text]),
        "labels": torch.cat([torch.full_like(image, -100), text]),
        "pixel_values": torch.randn(3, IMAGE_SIZE, IMAGE_SIZE),
    }


def build() -> Experiment:
    vision = InternVLVisionConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=[IMAGE_SIZE, IMAGE_SIZE],
        patch_size=[PATCH_SIZE, PATCH_SIZE],
        use_qk_norm=True,
    )
    config = InternVLConfig(
        vision_config=vision.to_dict(),
        text_config=Qwen2Config(**SIZES, num_key_value_heads=2).to_dict(),
        image_token_id=IMAGE_TOKEN,
        image_seq_length=IMAGE_POSITIONS,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    model = InternVLForConditionalGeneration(config)
    samples = [with_image(sample["input_ids"]) for sample in token_samples(VOCABULARY)]
    prompt = {
        "input_ids": samples[0]["input_ids"][None, : IMAGE_POSITIONS + 4],
        "pixel_values": samples[0]["pixel_values"][None],
    }
    return Experiment(model, samples, own_loss, lambda model, device: greedy(model, device, prompt))


if __name__ == "__main__":
    main(build)
