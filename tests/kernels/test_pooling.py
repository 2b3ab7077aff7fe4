"""Max-pooling that halves is torch's: values, and gradients of equal numbers too."""

import pytest
import torch
from torch import nn

from personafl.kernels.pooling import HalvingPool1d, HalvingPool2d, halve_faster, halved_images

# Small whole numbers, so that many neighbours are equal; odd lengths, whose last line nobody sees.
LINES = [(3, 2, 8), (2, 3, 7), (4, 6)]
IMAGES = [(2, 3, 8, 6), (2, 1, 7, 5), (3, 4, 9)]


def whole_numbers(shape):
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).float().requires_grad_()


def values_and_gradient(function, x):
    out = function(x)
    direction = torch.arange(1.0, out.numel() + 1).view(out.shape)
    return out, *torch.autograd.grad((out * direction).sum(), x)


@pytest.mark.parametrize("shape", LINES)
def test_lines(shape):
    x = whole_numbers(shape)
    for one, other in zip(
        values_and_gradient(HalvingPool1d(2), x), values_and_gradient(nn.MaxPool1d(2), x), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", IMAGES)
def test_images(shape):
    x = whole_numbers(shape)
    for one, other in zip(values_and_gradient(halved_images, x), values_and_gradient(nn.MaxPool2d(2), x), strict=True):
        assert torch.equal(one, other)


def test_a_large_image_by_its_layer():
    x = whole_numbers((2, 8, 128, 128))
    for one, other in zip(
        values_and_gradient(HalvingPool2d(2), x), values_and_gradient(nn.MaxPool2d(2), x), strict=True
    ):
        assert torch.equal(one, other)


def test_only_what_halves_is_exchanged():
    halving = [nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool2d((2, 2), stride=(2, 2))]
    others = [
        nn.MaxPool1d(3), nn.MaxPool1d(2, stride=1), nn.MaxPool2d((2, 3)), nn.MaxPool2d(2, padding=1),
        nn.MaxPool1d(2, dilation=2), nn.MaxPool1d(2, ceil_mode=True), nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool3d(2), nn.AvgPool1d(2),
    ]  # fmt: skip
    both = nn.Sequential(*halving, nn.Sequential(*others))
    halve_faster(both)
    assert all(isinstance(layer, HalvingPool1d | HalvingPool2d) for layer in halving)
    assert not any(isinstance(layer, HalvingPool1d | HalvingPool2d) for layer in others)
