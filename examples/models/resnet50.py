"""ResNet-50: all its fifty layers, with an eighth of the channels."""

from __future__ import annotations

from transformers import ResNetConfig, ResNetForImageClassification

from training import Experiment, image_samples, main, own_loss

CLASSES, SIZE = 10, 64


def build() -> Experiment:
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[32, 64, 128, 256],
        depths=[3, 4, 6, 3],
        layer_type="bottleneck",
        num_labels=CLASSES,
    )
    return Experiment(ResNetForImageClassification(config), image_samples(CLASSES, SIZE), own_loss)


if __name__ == "__main__":
    main(build)
