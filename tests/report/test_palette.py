"""The colours can be told apart, also by people who lack one kind of cones."""

import itertools

import numpy as np
import pytest

from personafl.palette import DARK, DARK_PAPER, LIGHT, LIGHT_PAPER, MARKERS

# Linear RGB as seen without red, green and blue cones: Machado, Oliveira, Fernandes 2009, severity 1.
EYES = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a, b):
    low, high = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_two_colours_differ_to_every_eye(colours, eye):
    seen = [lab(np.array(EYES[eye]) @ linear(c)) for c in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, LIGHT_PAPER), (DARK, DARK_PAPER)])
def test_every_colour_is_seen_on_its_paper(colours, paper):
    assert min(contrast(c, paper) for c in colours) >= 3


def test_there_are_eight_of_everything():
    assert len(set(LIGHT)) == len(set(DARK)) == len(set(MARKERS)) == 8
