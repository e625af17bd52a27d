"""MobileNetV2: depthwise convolutions between narrow layers, a quarter of the channels."""

from __future__ import annotations

from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

from training import Experiment, image_samples, main, own_loss

CLASSES, SIZE = 10, 64


def build() -> Experiment:
    config = MobileNetV2Config(
        image_size=SIZE, depth_multiplier=0.25, classifier_dropout_prob=0.0, num_labels=CLASSES
    )
    return Experiment(MobileNetV2ForImageClassification(config), image_samples(CLASSES, SIZE), own_loss)


if __name__ == "__main__":
    main(build)
