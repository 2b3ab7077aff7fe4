"""Facts about the picture of a federation: it shows the true counts, and overwrites nothing but itself."""

import numpy as np
import pytest
from PIL import Image

from personafl.data import IID, Digits, Dirichlet, build
from personafl.errors import DataError
from personafl.federation.overview import label_counts
from personafl.federation.overview_plot import CIRCLES, draw, plot
from personafl_papers.data.gaussian import Gaussian
from personafl_papers.partitions.practical import Practical


def test_the_area_of_a_circle_is_the_number_of_samples():
    fed = build(Digits(), Dirichlet(20, 0.3))
    counts = label_counts(fed)
    sizes, circles = draw(fed).axes
    (points,) = circles.collections
    shown = {(int(x), int(y)): area for (x, y), area in zip(points.get_offsets(), points.get_sizes(), strict=True)}
    assert {*shown} == {(int(m), int(c)) for m, c in zip(*np.nonzero(counts), strict=True)}
    scale = max(shown.values()) / counts.max()
    for (m, c), area in shown.items():
        assert area == pytest.approx(max(scale * counts[m, c], 4.0))  # the smallest are drawn so that one sees them
    assert [bar.get_height() for bar in sizes.patches] == counts.sum(axis=1).tolist()


def test_many_clients_are_columns_sorted_by_their_most_frequent_class():
    fed = build(Digits(), Dirichlet(CIRCLES + 1, 0.1))
    counts = label_counts(fed)
    _, below, _ = draw(fed).axes
    (image,) = below.images
    shares = np.ma.filled(image.get_array(), 0)
    assert shares.shape == (10, CIRCLES + 1) and shares.sum(axis=0) == pytest.approx(1)
    assert (np.diff(shares.argmax(axis=0)) >= 0).all()
    own = counts / counts.sum(axis=1, keepdims=True)
    assert np.sort(shares, axis=None) == pytest.approx(np.sort(own, axis=None))


def test_groups_have_colours_and_names():
    fed = build(Digits(), Practical(((0, 1), (2, 3)), (2, 3), (20, 30)))
    sizes, circles = draw(fed).axes
    assert [text.get_text() for text in sizes.get_legend().get_texts()] == ["group-0", "group-1"]
    assert len({tuple(colour) for colour in circles.collections[0].get_facecolors()}) == 2


@pytest.mark.parametrize("clients", [20, CIRCLES + 20])
def test_a_regression_is_sizes_only(clients, tmp_path):
    fed = build(Gaussian(clients=clients))
    assert len(draw(fed).axes) == 1
    plot(fed, tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").width > 700


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_federation_gives_the_same_file_which_may_be_overwritten(kind, tmp_path):
    fed, file = build(Digits(), IID(4)), tmp_path / f"picture.{kind}"
    plot(fed, file)
    first = file.read_bytes()
    plot(fed, file)
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_is_not_ours_is_not_overwritten(tmp_path):
    fed = build(Digits(), IID(4))
    mine = tmp_path / "holiday.png"
    Image.new("RGB", (4, 4)).save(mine)
    before = mine.read_bytes()
    with pytest.raises(DataError, match=r"holiday\.png exists and is not a picture of .* --out"):
        plot(fed, mine)
    assert mine.read_bytes() == before
    (tmp_path / "folder.png").mkdir()
    for name, said in (
        ("folder.png", "exists and is not"), ("a.gif", r"can be \.png, \.pdf, \.svg"), ("a", "can be"),
        ("no/a.png", "there is no folder"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            plot(fed, tmp_path / name)
