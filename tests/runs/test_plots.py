"""Pictures show the numbers of the tables."""

import matplotlib
import numpy as np
import pytest
from torch import nn

import personafl as pf
from personafl.errors import ConfigError, RunError

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def federation():
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=6, alpha=0.5))


@pytest.fixture(scope="module")
def found(federation):
    methods = {"cost $1 or $2": pf.Ditto()}
    settings = {"rounds": 4, "eval_every": 2, "engine": "stacked", "progress": False}
    return pf.compare(federation, nn.Linear(64, 10), methods, seeds=2, **settings)


@pytest.fixture
def run(found):
    return found.methods["cost $1 or $2"][0]


def heights(ax):
    return [bar.get_height() for bar in ax.patches]


def test_curves_are_the_records(run):
    own, common = run.plot.curves().lines
    for line, who in ((own, "personal"), (common, "global")):
        points = [(r["round"], 100 * r[f"{who}_accuracy"]) for r in run.rounds() if f"{who}_accuracy" in r]
        np.testing.assert_allclose(line.get_xydata(), points)
    (loss, _) = run.plot.curves("loss").lines
    np.testing.assert_allclose(loss.get_ydata()[-1], run.score["personal_loss"])


def test_clients_are_dots(run):
    ax = run.plot.clients()
    table = run.clients().to_pydict()
    np.testing.assert_allclose(
        ax.collections[1].get_offsets(),
        np.column_stack([table["n_train"], 100 * np.array(table["personal_accuracy"])]),
    )


def test_gains_are_differences_of_the_same_clients(found, run):
    table, alone = run.clients().to_pydict(), found.methods["separate"][0]
    own, common = (np.array(table[f"{who}_accuracy"]) for who in ("personal", "global"))
    np.testing.assert_allclose(heights(run.plot.gains()), np.sort(100 * (own - common))[::-1])
    other = np.array(alone.clients().to_pydict()["personal_accuracy"])
    ax = run.plot.gains(alone)
    np.testing.assert_allclose(heights(ax), np.sort(100 * (own - other))[::-1])
    assert f"{(own > other).sum()} clients do better, {(own < other).sum()} worse" in ax.get_title()


def test_gains_of_a_loss_are_positive_where_it_is_smaller(found, run):
    table = run.clients().to_pydict()
    gain = np.array(table["global_loss"]) - np.array(table["personal_loss"])
    np.testing.assert_allclose(heights(run.plot.gains(measure="loss")), np.sort(gain)[::-1])


def test_what_cannot_be_drawn_is_said(found, run, federation):
    with pytest.raises(ConfigError, match="measure must be one of accuracy, loss, not 'accurcy'"):
        run.plot.curves("accurcy")
    with pytest.raises(RunError, match=r"no accuracy .* over="):
        found.methods["separate"][0].plot.gains()
    others = pf.data.build(pf.data.Digits(), pf.partition.IID(clients=2))
    other = pf.train(others, nn.Linear(64, 10), rounds=1, progress=False)
    with pytest.raises(RunError, match="has no client 'client-2'"):
        run.plot.gains(other)
    with pytest.raises(ConfigError, match="over must be one of"):
        found.plot.gains("seperate")


def test_scores_of_a_comparison_are_its_table(found):
    ax = found.plot.scores()
    shown = dict(zip((t.get_text() for t in ax.get_yticklabels()), ax.lines[0].get_xdata(), strict=True))
    wanted = {row["label"].replace("$", r"\$"): 100 * row["accuracy"] for row in found.table()}
    assert shown == pytest.approx(wanted) and list(shown.values()) == sorted(shown.values())
    ax.figure.canvas.draw()  # dollars are not mathematics


def test_curves_of_a_comparison_are_means_over_seeds(found):
    lines = {line.get_label(): line for line in found.plot.curves().lines}
    runs = found.methods["separate"].values()
    wanted = np.mean([[r["personal_accuracy"] for r in run.rounds() if "personal_accuracy" in r] for run in runs], 0)
    np.testing.assert_allclose(lines["separate"].get_ydata(), 100 * wanted)


def test_gains_of_a_comparison_are_those_of_its_runs(found):
    ax = found.plot.gains()
    names = [label.get_text() for label in ax.get_yticklabels()]
    place = next(i for i, name in enumerate(names) if name.startswith(r"cost \$1"))
    gains = np.concatenate([
        np.array(found.methods["cost $1 or $2"][seed].clients().column("personal_accuracy"))
        - np.array(found.methods["separate"][seed].clients().column("personal_accuracy"))
        for seed in (0, 1)
    ])  # fmt: skip
    assert f"{np.mean(gains > 0):.0%} gain, {np.mean(gains < 0):.0%} lose" in names[place]


def test_axes_that_are_given_are_used(run):
    ax = plt.figure().subplots()
    assert run.plot.curves(ax=ax) is ax and run.plot.gains(ax=ax) is ax
