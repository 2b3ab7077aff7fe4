"""Objects in a notebook: names are text and never markup, and what is shown is what the object holds."""

import re
from html.parser import HTMLParser

import pytest
from torch import nn

import personafl as pf
from personafl.notebook import bars, card, curve, grid

WICKED = "<script>alert(1)</script> & \"'"


class Tags(HTMLParser):
    """The tags that are open at the end, all that were there, and the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.names, self.text = [], set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.open += [tag]
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_startendtag(self, tag, attributes):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def whole(html):
    found = Tags(html)
    assert not found.open and not found.names & {"script", "style", "link", "img"}
    return found.text


@pytest.mark.parametrize(
    "html",
    [
        card(WICKED, {WICKED: WICKED}),
        card("", {}, grid([WICKED, "n"], [[WICKED, "1"]])),
        bars([3, 1], WICKED),
        curve([0.1, 0.1], WICKED),
    ],
)
def test_what_users_named_is_text(html):
    assert WICKED in whole(html)


def test_colours_are_those_of_the_page():
    html = card("a", {"b": "c"}, grid(["a"], [["b"]]), bars([1], "d"), curve([1, 2], "e"))
    assert not re.findall(r"(?<![-\w])(?:color|background):(?!inherit|transparent)", html)
    assert not re.findall(r'(?:fill|stroke)="(?!none|currentColor)', html)


def test_bars_are_the_values_and_of_many_the_first_and_last_are_there():
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"/>', bars([1, 4, 2], ""))]
    assert [h / heights[0] for h in heights] == [1, 0.5, 0.25]
    many = [float(h) for h in re.findall(r'height="([\d.]+)"/>', bars(range(1, 5001), ""))]
    assert len(many) == 140 and many == sorted(many, reverse=True)
    assert (many[0], many[-1]) == (46, pytest.approx(46 / 5000, abs=0.01))


def test_a_federation_shows_itself():
    fed = pf.Federation.from_clients(
        {WICKED: ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])}, name=WICKED
    )  # fmt: skip
    text = whole(fed._repr_html_())
    assert repr(WICKED) in text and "2 clients" in text
    for line in repr(fed).splitlines()[1:]:
        assert line.split(maxsplit=1)[1] in text


def test_runs_and_comparisons_show_themselves(tmp_path):
    fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=1.0))
    found = pf.compare(
        fed,
        nn.Linear(64, 10),
        {WICKED: pf.Ditto()},
        seeds=1,
        rounds=2,
        eval_every=1,
        progress=False,
        out=tmp_path,
        engine="stacked",
    )
    text = whole(found._repr_html_())
    assert all(row["label"] in text for row in found.table()) and all(line in text for line in found.answer.split("\n"))
    assert f"{100 * found.table()[0]['accuracy']:.2f}" in text and repr(found).startswith("Comparison of 3 methods")
    run = found.methods[WICKED][0]
    assert "2 of 2 rounds" in whole(run._repr_html_()) and "<polyline" in run._repr_html_()
    assert f"personal_accuracy {run.score['personal_accuracy']:.4g}" in repr(run)
