"""A detector of one spoken word in a spectrogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from personafl.models.cnn import image

CHANNELS = {
    "paper": (64, 128, 256, 256, 256, 256, 384),
    "small": (8, 16, 32, 32, 32, 32, 64),
}
POOLED = (0, 1, 3, 5)
"""The convolutions that max-pooling follows: 7 convolutions and 4 poolings are Self-FL's 11 layers."""


@dataclass(frozen=True)
class WakewordCNN:
    """Seven convolutions and four max-poolings on log-mel spectrograms, after the detector of Self-FL.

    The paper says: 11 convolutional and max-pooling layers, about 3·10⁶ parameters. The rest is ours: 3x3, ReLU, the
    widths, and the mean over all places before the output, so that a spectrogram (1, mels, frames) may have any size
    from 16 by 16 on. Weights start as He et al. (2015) have them, because the stack is deep and has no normalization.

    Parameters
    ----------
    size
        `paper`, 3,025,794 parameters for two outputs, or `small`, 52,258, which trains in minutes on two cores.

    >>> sum(p.numel() for p in WakewordCNN(size="paper").build((1, 64, 100), 2).parameters())
    3025794
    """

    size: Literal["paper", "small"] = "small"

    name: ClassVar[str] = "wakeword-cnn"

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        before, channels, _, _ = image(self.name, shape, smallest=16)
        layers = [*before]
        for i, following in enumerate(CHANNELS[self.size]):
            layers += [nn.Conv2d(channels, following, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i in POOLED else []
            channels = following
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))
        for layer in net:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        return net
