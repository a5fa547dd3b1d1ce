"""Nets for images, small, in the ways of well known ones: what `TorchModel.check` is to be quiet about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> Any:
    """A convolution, a batch norm and an activation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([act()] if act else []))


class Residual(nn.Module):
    """What is added to its input, or to a projection of it."""

    def __init__(self, body: Any, short: Any = None, after: Any = None) -> None:
        super().__init__()
        self.body, self.short = body, short or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.after(self.body(x) + self.short(x))


class Shuffled(nn.Module):
    """A unit of ShuffleNet: half of the channels go through three convolutions, and channels are shuffled."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.stride = outputs // 2, stride
        own = inputs if stride > 1 else half
        self.right = nn.Sequential(
            unit(own, half, 1), unit(half, half, 3, stride, half, act=None), unit(half, half, 1)
        )  # fmt: skip
        if stride > 1:
            self.left = nn.Sequential(unit(inputs, inputs, 3, stride, inputs, act=None), unit(inputs, half, 1))

    def forward(self, x: Any) -> Any:
        left, right = (self.left(x), self.right(x)) if self.stride > 1 else self._halves(x)
        rows, channels, height, width = left.shape
        both = torch.stack([left, right], 2)
        return both.reshape(rows, 2 * channels, height, width)

    def _halves(self, x: Any) -> Any:
        left, right = x.chunk(2, 1)
        return left, self.right(right)


class Squeezed(nn.Module):
    """Channels weighted by what their means say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Dense(nn.Module):
    """What it makes beside its input."""

    def __init__(self, inputs: int, more: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, more, 3, padding=1, bias=False))

    def forward(self, x: Any) -> Any:
        return torch.cat([x, self.body(x)], 1)


class Branches(nn.Module):
    """Several ways side by side, as in GoogLeNet and SqueezeNet."""

    def __init__(self, *ways: Any) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Any) -> Any:
        return torch.cat([way(x) for way in self.ways], 1)


def inverted(channels: int, outputs: int, stride: int, act: Any = nn.ReLU6, squeeze: bool = False) -> Any:
    """A block of MobileNet: wider, by channels, narrower."""
    wide = 3 * channels
    body = [unit(channels, wide, 1, act=act), unit(wide, wide, 3, stride, wide, act=act)]
    body += [*([Squeezed(wide)] if squeeze else []), unit(wide, outputs, 1, act=None)]
    same = stride == 1 and channels == outputs
    return Residual(nn.Sequential(*body)) if same else nn.Sequential(*body)


def head(channels: int) -> list[Any]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def resnet() -> Any:
    def block(inputs: int, outputs: int, stride: int) -> Any:
        body = nn.Sequential(unit(inputs, outputs, 3, stride), unit(outputs, outputs, act=None))
        return Residual(body, None if stride == 1 else unit(inputs, outputs, 1, stride, act=None), nn.ReLU())

    blocks = [block(16, 16, 1), block(16, 32, 2), block(32, 32, 1), block(32, 64, 2)]
    return nn.Sequential(unit(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *head(64))


def shufflenet() -> Any:
    blocks = [Shuffled(24, 48, 2), Shuffled(48, 48, 1), Shuffled(48, 96, 2), Shuffled(96, 96, 1)]
    return nn.Sequential(unit(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1), *blocks, unit(96, 128, 1), *head(128))


def mobilenet() -> Any:
    blocks = [inverted(16, 16, 1), inverted(16, 24, 2), inverted(24, 24, 1), inverted(24, 32, 2)]
    return nn.Sequential(unit(3, 16, 3, 2, act=nn.ReLU6), *blocks, *head(32))


def efficientnet() -> Any:
    blocks = [inverted(16, 24, 2, nn.SiLU, True), inverted(24, 24, 1, nn.SiLU, True), inverted(24, 32, 2, nn.Hardswish)]
    return nn.Sequential(unit(3, 16, 3, 2, act=nn.SiLU), *blocks, *head(32))


def densenet() -> Any:
    layers = [Dense(16 + 8 * n, 8) for n in range(3)]
    return nn.Sequential(unit(3, 16, 3, 2), *layers, unit(40, 20, 1), nn.AvgPool2d(2), Dense(20, 8), *head(28))


def vgg() -> Any:
    return nn.Sequential(
        unit(3, 16), nn.MaxPool2d(2), unit(16, 32), unit(32, 32), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 32),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10),
    )  # fmt: skip


def squeezenet() -> Any:
    def fire(inputs: int) -> Any:
        ways = Branches(nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, padding=1))
        return nn.Sequential(nn.Conv2d(inputs, 8, 1), nn.ReLU(), ways, nn.ReLU())

    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2), nn.ReLU(), fire(24), nn.MaxPool2d(3, 2, ceil_mode=True), fire(32), *head(32)
    )


def googlenet() -> Any:
    def block(inputs: int) -> Any:
        pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(inputs, 8, 1))
        return Branches(unit(inputs, 8, 1), nn.Sequential(unit(inputs, 8, 1), unit(8, 16)), pooled)

    return nn.Sequential(unit(3, 16, 5, 2), block(16), nn.MaxPool2d(2), block(32), *head(32))


def regnet() -> Any:
    def block(inputs: int, outputs: int) -> Any:
        body = [unit(inputs, outputs, 1), unit(outputs, outputs, 3, 2, outputs // 8), Squeezed(outputs)]
        whole = nn.Sequential(*body, unit(outputs, outputs, 1, act=None))
        return Residual(whole, unit(inputs, outputs, 1, 2, act=None), nn.ReLU())

    return nn.Sequential(unit(3, 16, 3, 2), block(16, 24), block(24, 48), *head(48))


def convnext() -> Any:
    def block(channels: int) -> Any:
        body = [nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.GroupNorm(1, channels)]
        return Residual(nn.Sequential(*body, nn.Conv2d(channels, 64, 1), nn.GELU(), nn.Conv2d(64, channels, 1)))

    down = [nn.GroupNorm(1, 16), nn.Conv2d(16, 24, 2, 2)]
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), block(16), *down, block(24), *head(24))


NETS: dict[str, Callable[[], Any]] = {
    "ResNet": resnet, "ShuffleNet": shufflenet, "MobileNet": mobilenet, "EfficientNet": efficientnet,
    "DenseNet": densenet, "VGG": vgg, "SqueezeNet": squeezenet, "GoogLeNet": googlenet, "RegNet": regnet,
    "ConvNeXt": convnext,
}  # fmt: skip
