"""EfficientNet-lite0 (Tan and Le 2019, in the variant for mobile processors), for weights that others trained.

The network of the state dict `efficientnet-lite0-57934424.pth`, whose names its parts have: 4.7 million parameters,
trained on ImageNet. It has no squeeze-and-excitation, ReLU6 in place of swish, BatchNorm with TensorFlow's ε, and
TensorFlow's padding: where an odd number of zeros is needed, the last side has one more.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
"""Blocks, kernel, stride of the first block, widening, channels."""

WIDTH = 1280
"""Features of an image."""

SIZE = 96
"""Pixels a side that images are enlarged to. The weights were trained with 224, which costs five times as much."""


class SameConv(nn.Conv2d):
    """A convolution without bias whose output has ⌈size/stride⌉ places, padded as TensorFlow pads."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        lacking = [max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in (x.shape[2], x.shape[3])]
        if any(n % 2 for n in lacking):
            x = F.pad(x, [side for n in reversed(lacking) for side in (n // 2, n - n // 2)])
            lacking = [0, 0]
        return F.conv2d(x, self.weight, None, self.stride, [n // 2 for n in lacking], groups=self.groups)


class Block(nn.Module):
    """Widen, convolve each channel alone, narrow; added to what came in where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = inputs * widening
        if widening > 1:
            self._expand_conv, self._bn0 = SameConv(inputs, wide, 1), norm(wide)
        self._depthwise_conv, self._bn1 = SameConv(wide, wide, kernel, stride, groups=wide), norm(wide)
        self._project_conv, self._bn2 = SameConv(wide, outputs, 1), norm(outputs)
        self.widens, self.adds = widening > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.widens else x
        out = F.relu6(self._bn1(self._depthwise_conv(out)), inplace=True)
        out = self._bn2(self._project_conv(out))
        return cast(Tensor, out + x if self.adds else out)


class EfficientNetLite0(nn.Module):
    """1,280 features of an image: the mean over all places of the last convolution.

    Images (N, 3, height, width) have values from −1 to 1 and are enlarged to `size` pixels a side by bilinear
    interpolation. The weights have a layer more, for the 1,000 classes of ImageNet, which features do not need.

    >>> EfficientNetLite0(size=32).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1280])
    """

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.size = size
        self._conv_stem, self._bn0 = SameConv(3, 32, 3, 2), norm(32)
        blocks, inputs = [], 32
        for count, kernel, stride, widening, outputs in STAGES:
            for number in range(count):
                blocks.append(Block(inputs, outputs, kernel, stride if number == 0 else 1, widening))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SameConv(inputs, WIDTH, 1), norm(WIDTH)
        self._fc = nn.Linear(WIDTH, 1000)

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        x = x.contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        x = F.relu6(self._bn0(self._conv_stem(x)), inplace=True)
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
