"""ResNet-50: all its fifty layers, with an eighth of the channels."""

from __future__ import annotations

from functools import partial

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from training import Experiment, image_samples, main, own_loss

CLASSES, SIZE, ROWS = 10, 64, 16

sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9, weight_decay=1e-4)


def build() -> Experiment:
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[32, 64, 128, 256],
        depths=[3, 4, 6, 3],
        layer_type="bottleneck",
        num_labels=CLASSES,
    )
    samples = image_samples(CLASSES, SIZE, ROWS)
    return Experiment(ResNetForImageClassification(config), samples, own_loss, optimizer=sgd, rows=ROWS)


if __name__ == "__main__":
    main(build)
