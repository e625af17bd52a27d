"""Models that find objects, and one that reads text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diopi.conformance.models import Step, model
from diopi.conformance.models.layers import Pyramid, ResNet, conv_norm

_CLASSES = 6
_SIDE = 64


def _boxes(count: int) -> Tensor:
    """Boxes (x1, y1, x2, y2) inside the image."""
    corner = torch.rand(count, 2) * _SIDE / 2
    return torch.cat([corner, corner + 8 + torch.rand(count, 2) * _SIDE / 3], 1)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union, each with each."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(x[:, 2:] - x[:, :2]).prod(-1) for x in (a, b)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)


def _anchors(sizes: list[tuple[int, int]], per_location: int = 2) -> Tensor:
    """Boxes centred on every location of every level."""
    made = []
    for level, (rows, columns) in enumerate(sizes):
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centre = torch.stack([x, y], -1).float().add_(0.5).mul_(_SIDE / rows).view(-1, 1, 2)
        half = (
            torch.tensor([4.0, 8.0])[:per_location].mul(2.0**level).view(1, per_location, 1).expand(-1, -1, 2)
        )
        made.append(torch.cat([centre - half, centre + half], -1).view(-1, 4))
    return torch.cat(made)


def encoded(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Boxes relative to anchors."""
    size = anchors[:, 2:] - anchors[:, :2]
    shift = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2 / size
    return torch.cat([shift, torch.log((boxes[:, 2:] - boxes[:, :2]) / size)], 1)


def decoded(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Boxes from what is predicted relative to anchors."""
    size = anchors[:, 2:] - anchors[:, :2]
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2 + deltas[:, :2] * size
    half = size * torch.exp(deltas[:, 2:].clamp(max=4.0)) / 2
    return torch.cat([centre - half, centre + half], 1).clamp(0, _SIDE)


def _flat(maps: list[Tensor], width: int) -> Tensor:
    """Predictions of all levels and locations in one list."""
    return torch.cat([m.permute(0, 2, 3, 1).reshape(m.shape[0], -1, width) for m in maps], 1)


class _Dense(nn.Module):
    """Backbone, pyramid, and two towers that answer at every location."""

    def __init__(
        self, classes: int, numbers: int, *, per_location: int = 2, group_norm: bool = False
    ) -> None:
        super().__init__()
        self.backbone = ResNet((1, 1, 1, 1))
        self.pyramid = Pyramid(self.backbone.channels[1:], 16)
        norm: list[nn.Module] = [nn.GroupNorm(4, 16)] if group_norm else []
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), *norm, nn.ReLU()) for _ in range(2)
        )
        self.classes = nn.Conv2d(16, per_location * classes, 3, padding=1)
        self.numbers = nn.Conv2d(16, per_location * numbers, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        levels = self.pyramid(self.backbone(images)[1:])
        return (
            [self.classes(self.towers[0](level)) for level in levels],
            [self.numbers(self.towers[1](level)) for level in levels],
        )


def _matched(anchors: Tensor, truth: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Label and box of each anchor, and which anchors have one."""
    best, which = overlap(anchors, truth).max(1)
    found = best > 0.3
    return torch.where(found, labels[which], torch.zeros_like(which)), truth[which], found


@model("retinanet")
def retinanet() -> Step:
    """Focal loss over all anchors."""
    net = _Dense(_CLASSES, 4)
    images, truth, labels = torch.randn(2, 3, _SIDE, _SIDE), _boxes(5), torch.randint(1, _CLASSES, (5,))

    def loss() -> Tensor:
        classes, numbers = net(images)
        anchors = _anchors([tuple(m.shape[-2:]) for m in classes])
        wanted, boxes, found = _matched(anchors, truth, labels)
        scores, deltas = _flat(classes, _CLASSES), _flat(numbers, 4)
        target = F.one_hot(wanted, _CLASSES).float()[None].expand_as(scores)
        chance = torch.sigmoid(scores)
        plain = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
        weight = target * 0.25 + (1 - target) * 0.75
        focal = weight * plain * (1 - (chance * target + (1 - chance) * (1 - target))) ** 2.0
        error = F.l1_loss(deltas[:, found], encoded(boxes, anchors)[None, found].expand(2, -1, -1))
        return focal.sum() / found.sum().clamp(min=1) + error

    return Step(net, loss)


@model("fcos")
def fcos() -> Step:
    """Without anchors: distances, centreness, the logarithm of the overlap."""
    net = _Dense(_CLASSES, 5, per_location=1, group_norm=True)
    scale = nn.Parameter(torch.ones(3))
    net.register_parameter("scale", scale)
    images, labels = torch.randn(2, 3, _SIDE, _SIDE), torch.randint(0, _CLASSES, (2, 84))
    wanted = torch.rand(2, 84, 4) * 20 + 1

    def loss() -> Tensor:
        classes, numbers = net(images)
        scores = _flat(classes, _CLASSES)
        scaled = [
            torch.cat([torch.exp(m[:, :4] * s), m[:, 4:]], 1) for m, s in zip(numbers, scale, strict=True)
        ]
        sides, centre = _flat(scaled, 5).split([4, 1], -1)
        low = torch.min(sides, wanted)
        shared = (low[..., 0] + low[..., 2]) * (low[..., 1] + low[..., 3])
        area = [(d[..., 0] + d[..., 2]) * (d[..., 1] + d[..., 3]) for d in (sides, wanted)]
        fit = (-torch.log((shared + 1) / (area[0] + area[1] - shared + 1))).mean()
        across, along = wanted[..., ::2], wanted[..., 1::2]
        near = torch.sqrt(across.amin(-1) / across.amax(-1) * (along.amin(-1) / along.amax(-1)))
        centred = F.binary_cross_entropy_with_logits(centre.squeeze(-1), near)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + fit + centred

    return Step(net, loss)


def _regions(features: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Bilinear samples on a grid inside each box (one image)."""
    steps = (torch.arange(side) + 0.5) / side
    x = boxes[:, 0:1] + (boxes[:, 2:3] - boxes[:, 0:1]) * steps
    y = boxes[:, 1:2] + (boxes[:, 3:4] - boxes[:, 1:2]) * steps
    grid = torch.stack([x[:, None].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)], -1)
    many = features.expand(boxes.shape[0], -1, -1, -1)
    return F.grid_sample(many, grid / _SIDE * 2 - 1, align_corners=False)


class _TwoStage(nn.Module):
    """Proposals first, then a closer look at each."""

    def __init__(self, *, masks: bool) -> None:
        super().__init__()
        self.first = _Dense(1, 4)
        self.look = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 25, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        )
        self.classes = nn.Linear(32, _CLASSES)
        self.numbers = nn.Linear(32, 4 * _CLASSES)
        self.masks = (
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1),
                nn.ReLU(),
                nn.ConvTranspose2d(16, 8, 2, 2),
                nn.ReLU(),
                nn.Conv2d(8, _CLASSES, 1),
            )
            if masks
            else None
        )


def _suppressed(boxes: Tensor, scores: Tensor) -> Tensor:
    """Positions of boxes that no better one covers, best first (one round of suppression)."""
    order = scores.argsort(descending=True)
    covered = torch.triu(overlap(boxes[order], boxes[order]), diagonal=1).amax(0) > 0.7
    return order[~covered]


def _two_stage(*, masks: bool) -> Step:
    net = _TwoStage(masks=masks)
    images, truth, labels = torch.randn(1, 3, _SIDE, _SIDE), _boxes(4), torch.randint(1, _CLASSES, (4,))
    shapes = (torch.rand(8, 10, 10) > 0.5).float()

    def loss() -> Tensor:
        levels = net.first.pyramid(net.first.backbone(images)[1:])
        objects = _flat([net.first.classes(net.first.towers[0](level)) for level in levels], 1)[0, :, 0]
        deltas = _flat([net.first.numbers(net.first.towers[1](level)) for level in levels], 4)[0]
        anchors = _anchors([tuple(level.shape[-2:]) for level in levels])
        wanted, boxes, found = _matched(anchors, truth, labels)
        total = F.binary_cross_entropy_with_logits(objects, found.float())
        total = total + F.smooth_l1_loss(deltas[found], encoded(boxes, anchors)[found], beta=1 / 9)
        with torch.no_grad():
            top = objects.topk(24).indices
            proposed = decoded(deltas[top], anchors[top])
            proposed = torch.cat([truth, proposed[_suppressed(proposed, objects[top])]])[:8]
            proposed = torch.cat([proposed, truth.repeat(2, 1)])[:8]
        wanted, boxes, found = _matched(proposed, truth, labels)
        regions = _regions(levels[0], proposed, 5)
        seen = net.look(regions)
        total = total + F.cross_entropy(net.classes(seen), wanted)
        chosen = net.numbers(seen).view(8, _CLASSES, 4)[torch.arange(8), wanted]
        size = encoded(boxes, proposed + torch.tensor([0.0, 0.0, 1.0, 1.0]))
        total = total + (F.smooth_l1_loss(chosen, size, reduction="none").sum(1) * found).mean()
        if net.masks is not None:
            drawn = net.masks(regions)[torch.arange(8), wanted]
            total = total + F.binary_cross_entropy_with_logits(drawn, shapes)
        return total

    return Step(net, loss)


@model("faster_rcnn_r50")
def faster_rcnn_r50() -> Step:
    """Anchors, proposals, regions, box heads."""
    return _two_stage(masks=False)


@model("mask_rcnn")
def mask_rcnn() -> Step:
    """The same with a mask for each region."""
    return _two_stage(masks=True)


class _SingleShot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))
            for a, b in ((3, 8), (8, 16), (16, 16), (16, 16))
        )
        self.scale = nn.Parameter(torch.full((16,), 20.0))
        self.classes = nn.ModuleList(nn.Conv2d(16, 2 * _CLASSES, 3, padding=1) for _ in range(3))
        self.numbers = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        levels = levels[1:]
        levels[0] = F.normalize(levels[0], dim=1) * self.scale[None, :, None, None]
        return (
            [head(level) for head, level in zip(self.classes, levels, strict=True)],
            [head(level) for head, level in zip(self.numbers, levels, strict=True)],
        )


@model("ssd300")
def ssd300() -> Step:
    """Normalised first level; the hardest negatives, found by sorting."""
    net = _SingleShot()
    images, truth, labels = torch.randn(2, 3, _SIDE, _SIDE), _boxes(4), torch.randint(1, _CLASSES, (4,))

    def loss() -> Tensor:
        classes, numbers = net(images)
        anchors = _anchors([tuple(m.shape[-2:]) for m in classes])
        wanted, boxes, found = _matched(anchors, truth, labels)
        scores, deltas = _flat(classes, _CLASSES)[0], _flat(numbers, 4)[0]
        each = F.cross_entropy(scores, wanted, reduction="none")
        _, order = each.detach().masked_fill(found, 0.0).sort(descending=True)
        rank = order.argsort()
        hard = rank < 3 * found.sum()
        chosen = (each * (hard | found)).sum()
        error = F.smooth_l1_loss(deltas[found], encoded(boxes, anchors)[found], reduction="sum")
        return (chosen + error) / found.sum()

    return Step(net, loss)


class _Yolo(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(channels: int, to: int, kernel: int = 3, stride: int = 1) -> nn.Module:
            return conv_norm(channels, to, kernel, stride, activation=nn.LeakyReLU(0.1, inplace=True))

        self.early = nn.Sequential(
            block(3, 8), block(8, 16, 3, 2), block(16, 8, 1), block(8, 16), block(16, 16, 3, 2)
        )
        self.late = nn.Sequential(block(16, 32, 3, 2), block(32, 16, 1), block(16, 32))
        self.coarse = nn.Conv2d(32, 3 * (5 + _CLASSES), 1)
        self.up = block(32, 8, 1)
        self.fine = nn.Sequential(block(24, 16), nn.Conv2d(16, 3 * (5 + _CLASSES), 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        early = self.early(x)
        late = self.late(early)
        grown = F.interpolate(self.up(late), scale_factor=2, mode="nearest")
        return [self.coarse(late), self.fine(torch.cat([grown, early], 1))]


@model("yolov3")
def yolov3() -> Step:
    """Leaky ReLU, two scales, sigmoid of everything but the sizes."""
    net = _Yolo()
    images = torch.randn(2, 3, 32, 32)

    def loss() -> Tensor:
        total = torch.zeros(())
        for answer in net(images):
            n, _, h, w = answer.shape
            told = answer.view(n, 3, 5 + _CLASSES, h, w).permute(0, 1, 3, 4, 2)
            target = torch.rand(told.shape)
            there = target[..., 4] > 0.8
            offsets = F.mse_loss(torch.sigmoid(told[..., :2][there]), target[..., :2][there])
            sizes = F.mse_loss(told[..., 2:4][there].exp(), target[..., 2:4][there])
            seen = F.binary_cross_entropy_with_logits(told[..., 4], there.float())
            kinds = F.binary_cross_entropy_with_logits(told[..., 5:], (target[..., 5:] > 0.5).float())
            total = total + offsets + sizes + seen + kinds
        return total

    return Step(net, loss)


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            conv_norm(1, 8), nn.MaxPool2d(2), conv_norm(8, 16), nn.MaxPool2d((2, 1)), conv_norm(16, 16)
        )
        self.read = nn.LSTM(16 * 4, 16, 2, bidirectional=True, batch_first=True)
        self.name = nn.Linear(32, 11)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.look(x).permute(0, 3, 1, 2).flatten(2)
        hidden, _ = self.read(columns)
        return F.log_softmax(self.name(hidden), -1)


@model("crnn")
def crnn() -> Step:
    """Convolutions, a two-way LSTM, CTC loss."""
    net = _Reader()
    images, text = torch.randn(2, 1, 16, 40), torch.randint(1, 11, (2, 6))

    def loss() -> Tensor:
        told = net(images).transpose(0, 1)
        lengths = torch.full((2,), told.shape[0]), torch.tensor([6, 4])
        return F.ctc_loss(told, text, *lengths, zero_infinity=True)

    return Step(net, loss, optimizer="adamw")
