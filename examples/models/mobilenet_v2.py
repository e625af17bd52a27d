"""MobileNetV2: depthwise convolutions between narrow layers, a quarter of the channels."""

from __future__ import annotations

from functools import partial

import torch
from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

from training import Experiment, image_samples, main, own_loss

CLASSES, SIZE, ROWS = 10, 64, 16

sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9, weight_decay=1e-4)


def build() -> Experiment:
    config = MobileNetV2Config(
        image_size=SIZE, depth_multiplier=0.25, classifier_dropout_prob=0.0, num_labels=CLASSES
    )
    samples = image_samples(CLASSES, SIZE, ROWS)
    return Experiment(MobileNetV2ForImageClassification(config), samples, own_loss, optimizer=sgd, rows=ROWS)


if __name__ == "__main__":
    main(build)
