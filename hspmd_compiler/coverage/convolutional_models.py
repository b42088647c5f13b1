"""Models of images in plain torch: chains of convolutions, residual blocks, and a U-Net of diffusion."""

from __future__ import annotations

from functools import partial
from math import log

import torch
from torch import Generator, Tensor, nn

from .model import SAMPLES, Batch, CoveredModel

CHANNELS, CLASSES = 3, 5
VGG_SIZE = 32
"""Five poolings halve it to 1."""
VGG19 = (2, 2, 4, 4, 4)
"""Convolutions before each pooling."""
VGG_WIDTHS = (4, 5, 6, 6, 6)
HIDDEN = 10


class Vgg19(nn.Module):
    """VGG19 as of its paper, with narrow layers, dropout included; optionally with batch norm."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = CHANNELS
        for count, wider in zip(VGG19, VGG_WIDTHS, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(width, wider, kernel_size=3, padding=1))
                layers += [nn.BatchNorm2d(wider)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                width = wider
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(width * 4, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        return nn.functional.cross_entropy(self.classifier(x), y)


RESNET_SIZE = 8


class BasicBlock(nn.Module):
    """ResNet's block of two convolutions with batch norm, beside the input or what fits it."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        fits = stride == 1 and width == out
        strided = nn.Conv2d(width, out, kernel_size=1, stride=stride, bias=False)
        self.downsample = None if fits else nn.Sequential(strided, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        found: Tensor = self.relu(self.bn2(self.conv2(x)) + beside)
        return found


class ResNet(nn.Module):
    """A stem, blocks that halve the image and widen it, and the mean over what is left of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, 5, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.blocks = nn.Sequential(BasicBlock(5, 5, 1), BasicBlock(5, 6, 2), BasicBlock(6, 8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.flatten(self.avgpool(self.blocks(x)), 1)
        return nn.functional.cross_entropy(self.fc(x), y)


UNET_SIZE, UNET_WIDTH, UNET_HEADS, TIME = 8, 6, 3, 8


class ResidualBlock(nn.Module):
    """Group norm, SiLU and convolution twice, the time added between, beside a shortcut."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(3, width)
        self.conv1 = nn.Conv2d(width, out, kernel_size=3, padding=1)
        self.time = nn.Linear(TIME, out)
        self.norm2 = nn.GroupNorm(3, out)
        self.conv2 = nn.Conv2d(out, out, kernel_size=3, padding=1)
        self.shortcut = nn.Conv2d(width, out, kernel_size=1) if width != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(nn.functional.silu(self.norm1(x)))
        hidden = hidden + self.time(nn.functional.silu(time))[:, :, None, None]
        beside: Tensor = self.shortcut(x)
        found: Tensor = self.conv2(nn.functional.silu(self.norm2(hidden)))
        return beside + found


class SpatialAttention(nn.Module):
    """Attention of all pixels to all pixels, beside the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        tokens = self.norm(x).view(batch, width, height * across).transpose(1, 2)
        heads = [
            part.view(batch, height * across, UNET_HEADS, width // UNET_HEADS).transpose(1, 2)
            for part in self.query_key_value(tokens).chunk(3, dim=-1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, height * across, width))
        return x + found.transpose(1, 2).view(batch, width, height, across)


class Down(nn.Module):
    """A residual block, whose result is also kept, and half the size."""

    def __init__(self, width: int, out: int, shrink: nn.Module) -> None:
        super().__init__()
        self.block = ResidualBlock(width, out)
        self.shrink = shrink

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.block(x, time)
        return self.shrink(kept), kept


class Up(nn.Module):
    """Twice the size, and a residual block that also reads what the step down kept."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.block = ResidualBlock(width, out)

    def forward(self, x: Tensor, kept: Tensor, time: Tensor) -> Tensor:
        x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        found: Tensor = self.block(torch.cat([x, kept], dim=1), time)
        return found


class UNet(nn.Module):
    """Halves the image and restores it; what each step down keeps is read by its step up.

    x: noisy images. t: how noisy, a number each. noise: what is to be found.
    """

    def __init__(self) -> None:
        super().__init__()
        width, deep = UNET_WIDTH, 2 * UNET_WIDTH
        strided = nn.Conv2d(width, width, kernel_size=3, stride=2, padding=1)
        self.time = nn.Sequential(nn.Linear(TIME, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.first = nn.Conv2d(CHANNELS, width, kernel_size=3, padding=1)
        self.down = nn.ModuleList([Down(width, width, strided), Down(width, deep, nn.AvgPool2d(2))])
        self.middle = SpatialAttention(deep)
        self.up = nn.ModuleList([Up(2 * deep, width), Up(2 * width, width)])
        self.last = nn.Sequential(nn.GroupNorm(3, width), nn.SiLU(), nn.Conv2d(width, CHANNELS, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        time = self.time(self._waves(t))
        x, skips = self.first(x), []
        for down in self.down:
            x, kept = down(x, time)
            skips.append(kept)
        x = self.middle(x)
        for up in self.up:
            x = up(x, skips.pop(), time)
        found: Tensor = self.last(x)
        return nn.functional.mse_loss(found, noise)

    @staticmethod
    def _waves(t: Tensor) -> Tensor:
        steps = torch.exp(-log(100.0) * torch.arange(TIME // 2, device=t.device) / (TIME // 2))
        angles = t[:, None] * steps
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def labelled_images(size: int, generator: Generator) -> Batch:
    """Random images, each with its class."""
    x = torch.randn(SAMPLES, CHANNELS, size, size, generator=generator)
    return {"x": x, "y": torch.randint(CLASSES, (SAMPLES,), generator=generator)}


def noisy_images(generator: Generator) -> Batch:
    """Images with noise of a random strength."""
    x, noise = (torch.randn(SAMPLES, CHANNELS, UNET_SIZE, UNET_SIZE, generator=generator) for _ in range(2))
    return {"x": x + noise, "t": torch.rand(SAMPLES, generator=generator) * 100, "noise": noise}


VGG_IMAGES, RESNET_IMAGES = (partial(labelled_images, size) for size in (VGG_SIZE, RESNET_SIZE))
CONVOLUTIONAL_MODELS: tuple[CoveredModel, ...] = (
    CoveredModel("VGG19", partial(Vgg19, False), VGG_IMAGES),
    CoveredModel("VGG19, batch norm", partial(Vgg19, True), VGG_IMAGES, whole_statistics=True),
    CoveredModel("ResNet", ResNet, RESNET_IMAGES, whole_statistics=True),
    CoveredModel("diffusion U-Net", UNet, noisy_images),
)
