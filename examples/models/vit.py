"""ViT: pictures as patches, a transformer, a class."""

from __future__ import annotations

from transformers import ViTConfig, ViTForImageClassification

from training import Experiment, image_samples, main, own_loss

CLASSES, SIZE = 10, 32


def build() -> Experiment:
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=160,
        image_size=SIZE,
        patch_size=4,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Experiment(ViTForImageClassification(config), image_samples(CLASSES, SIZE), own_loss)


if __name__ == "__main__":
    main(build)
