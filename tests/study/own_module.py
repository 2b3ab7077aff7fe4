"""A module and a loss of somebody's own, in a file that other processes can import."""

import torch.nn.functional as F
from torch import nn


class Scaled(nn.Module):
    """Logits, scaled."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale, self.linear = scale, nn.Linear(64, 10)

    def forward(self, x):
        return self.linear(x.flatten(1)) * self.scale


def smooth(outputs, y):
    return F.cross_entropy(outputs, y, label_smoothing=0.1, reduction="none")
