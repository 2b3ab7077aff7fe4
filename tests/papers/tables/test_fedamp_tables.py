"""FedAMP's tables: cells against stored values, what the paper's own numbers say of its claims, tests and weights."""

import numpy as np
import pytest
from scipy import stats

from personafl.config import parse
from personafl_papers.partitions.practical import Practical
from personafl_papers.tables import fedamp_pairs
from personafl_papers.tables.availability import available
from personafl_papers.tables.claims import Number
from personafl_papers.tables.fedamp_pairs import blocks, distribution, outperforms, paired_tests, weights_of
from personafl_papers.tables.fedamp_tables import (
    AXES,
    DATA,
    LIKE,
    METHODS,
    PUBLISHED,
    ROWS,
    SETTINGS,
    TABLE,
    TRIES,
    config,
    first,
    second,
)
from personafl_papers.tables.figures import histograms
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import run_cell, use_real_data

TOLERANCE = 0.01
"""Of weighted accuracy: sums in another order change single predictions of a few thousand."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "method", "expected"),
    [
        ("fmnist practical", "fedamp", 0.6029),
        ("fmnist pathological", "fedprox-ft", 0.9367),
        ("fmnist practical", "fedavg-global", 0.6195),
    ],
)
def test_a_cell_is_what_it_was(part, method, expected, monkeypatch, tmp_path):
    use_real_data(monkeypatch, "fedamp-tables")
    run = run_cell("fedamp-tables", part, method, tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(expected, abs=TOLERANCE)
    if method == "fedavg-global":
        assert run.score["personal_accuracy"] == run.score["global_accuracy"]


def test_a_cell_is_what_it_was_and_weights_of_heurfedamp_are_by_client(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "fedamp-tables")
    run = run_cell("fedamp-tables", "fmnist practical", "heurfedamp", tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(0.6033, abs=TOLERANCE)
    weights, groups = weights_of(run)
    assert weights.shape == (12, 12) and weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert np.diag(weights) == pytest.approx(0.3, abs=1e-5), "a client's share in its own cloud model"
    assert groups == ["tops"] * 4 + ["shoes"] * 4 + ["other"] * 4


def test_the_papers_claims_hold_for_the_papers_numbers():
    numbers = {
        part: {row: {c: Number(v, 0.01, 3) for c, v in columns.items()} for row, columns in described.published.items()}
        for part, described in TABLE.parts.items()
        if described.published
    }
    decided = [claim for claim in TABLE.claims if set(claim.parts) <= set(numbers)]
    assert len(decided) == 22
    for claim in decided:
        assert claim.decide(numbers).verdict == "holds", claim.text


def test_published_numbers_are_in_their_places():
    assert TABLE.parts["mnist iid"].published["Separate"] == {"BMTA": 99.27}
    assert TABLE.parts["cifar100 pathological"].published["SCAFFOLD"] == {"BMTA": 2.04}
    assert TABLE.parts["fmnist practical"].published["HeurFedAMP"] == {"BMTA": 91.37}
    assert set(PUBLISHED) == set(ROWS.values()) and set(AXES) == set(METHODS)


def test_every_method_is_searched_with_the_same_effort_and_all_settings_are_sound(monkeypatch):
    monkeypatch.setattr("personafl_papers.tables.fedamp_tables.available", lambda source: True)
    found = Found()
    searches, runs = first(found), second(found)
    varied = dict(one for one in runs if ", " in one[0])
    runs = [one for one in runs if one[0] not in varied]
    assert len(searches) + len(LIKE) == len(runs) == len(DATA) * len(SETTINGS)
    checked = {part for claim in TABLE.claims for part in claim.parts}
    assert not {f"{source} {setting}" for source, setting in LIKE} & checked, "of which nothing is claimed"
    for _, plan in searches:
        assert set(plan.axes) == set(METHODS) and plan.budget == TRIES
        for method, axes in plan.axes.items():
            for end in (0, -1):
                point = {axis.key: axis.values[end] for axis in axes}
                assert plan.plan.trial(method, 0, point).config.schedule.rounds == 60, "as long as the runs"
    assert {axis.key for axis in AXES["fedamp"]} >= {"algorithm.sigma_scale", "algorithm.pull"}
    for part, plan in runs:
        assert part in TABLE.parts and plan.seeds == (0, 1, 2)
        assert {plan.job(method, 0).config.schedule.rounds for method in METHODS} == {60}
    apart = {f"{source} practical, alike apart" for source in ("mnist", "fmnist")}
    assert set(varied) == apart | {f"{source} practical, long rounds" for source in DATA}
    assert set(varied) <= set(TABLE.parts)
    assert varied["fmnist practical, long rounds"].job("fedamp", 0).config.local.steps == 200
    parted = varied["fmnist practical, alike apart"].job("fedamp", 0).config.partition
    assert sorted(label for group in parted.groups for label in group) == list(range(10))


def test_a_search_never_sees_the_test_data():
    def federation(validation):
        tables = {**config("fmnist", "iid", quick=True, validation=validation), "data": "digits"}
        return parse(tables).federation()

    searched, run = federation(True), federation(False)
    for client in range(len(run.ids)):
        before, after = (f.x[f.bounds[client, 2] : f.bounds[client, 3]] for f in (searched, run))
        assert len(after) > 0 and np.array_equal(before, after)


@pytest.mark.parametrize(
    ("source", "classes", "each"), [("mnist", 10, 6300), ("cifar100", 100, 600), ("emnist", 62, 1900)]
)
def test_training_samples_of_the_practical_division_are_the_papers(source, classes, each):
    """Supplies are those of the data set's smallest class."""
    tables = config(source, "practical", quick=False)
    described = tables["partition"]
    dealt = Practical(groups=described["groups"], samples=tuple(described["samples"]))(
        np.repeat(np.arange(classes), each), np.random.default_rng(0)
    )
    training = [round(tables["splits"][0] * len(part)) for part in dealt.parts]
    assert sorted(set(training)) == [400, 700, 1000]
    assert len(training) == (62 if source == "emnist" else 60)


def test_the_practical_division_of_emnist_can_be_made_of_its_test_images(monkeypatch):
    use_real_data(monkeypatch, "fedamp-tables")
    if not available("emnist"):
        pytest.skip("emnist is not at hand")
    made = parse({**config("emnist", "practical", quick=False), "algorithm": "fedavg"}).federation()
    sizes = made.sizes("train")
    means = [sizes[group].mean() for group in (slice(0, 10), slice(10, 36), slice(36, 62))]
    assert len(made) == 62 and means == pytest.approx([975, 611, 346], abs=1)


def test_tests_are_wilcoxons_over_the_clients_of_all_seeds_with_holms_correction(monkeypatch):
    monkeypatch.setattr(fedamp_pairs, "accuracy_of", lambda run: run)
    draw = np.random.default_rng(0)
    base = {seed: draw.uniform(0.5, 0.9, 40) for seed in (0, 1)}
    better = {seed: values + draw.normal(0.02, 0.03, 40) for seed, values in base.items()}
    same = {seed: values + draw.normal(0.02, 0.03, 40) for seed, values in base.items()}
    runs = {"a": better, "b": base, "c": same}
    found = paired_tests(runs, {"a": "A", "b": "B", "c": "C"}, ["A"])
    raw = [
        stats.wilcoxon(*(np.concatenate([*side.values()]) for side in (better, other)), method="asymptotic").pvalue
        for other in (base, same)
    ]
    corrected = [min(1.0, 2 * raw[0]), raw[1]] if raw[0] < raw[1] else [raw[0], min(1.0, 2 * raw[1])]
    for row, p in zip("BC", corrected, strict=True):
        assert 10 ** -found[row]["−log₁₀ p, A"].mean == pytest.approx(p, rel=1e-6)
    gaps = [100 * float((better[seed] - base[seed]).mean()) for seed in (0, 1)]
    assert found["B"]["A − this"].values == pytest.approx(gaps)


@pytest.mark.parametrize(
    ("gap", "power", "verdict"), [(2.0, 6.0, "holds"), (2.0, 3.0, "not decided"), (-0.1, 0.5, "does not hold")]
)
def test_to_outperform_is_to_be_better_and_significantly_so(gap, power, verdict):
    row = {"A − this": Number(gap, 0.1, 3), "−log₁₀ p, A": Number(power, np.nan, 1)}
    easy = {"A − this": Number(9.0, 0.1, 3), "−log₁₀ p, A": Number(20.0, np.nan, 1)}
    assert outperforms("p", "A", ["B", "C"], 1e-4)({"p": {"B": easy, "C": row}}).verdict == verdict


def test_the_distribution_counts_every_client_of_all_seeds_once(monkeypatch):
    monkeypatch.setattr(fedamp_pairs, "accuracy_of", lambda run: np.array(run))
    found = distribution({"a": {0: [0.0, 0.04, 1.0], 1: [0.51, np.nan, 0.99]}, "b": {}}, {"a": "A", "b": "B"})
    assert set(found["counts"]) == {"A"} and sum(found["counts"]["A"]) == 5
    assert (found["counts"]["A"][0], found["counts"]["A"][10], found["counts"]["A"][-1]) == (2, 1, 2)


def test_lines_of_nine_methods_can_be_told_apart():
    panel = {"edges": [0, 50, 100], "counts": {row: [i, 1] for i, row in enumerate(ROWS.values())}}
    [axes] = histograms({"title": panel}, "accuracy", "clients").axes
    assert len({(line.get_edgecolor(), line.get_linestyle()) for line in axes.patches}) == len(ROWS) == 9


def test_even_weights_show_no_groups():
    weights = np.full((6, 6), 1 / 6)
    inside, between, share = blocks(weights, ["a"] * 3 + ["b"] * 3)
    assert inside == pytest.approx(between) and share == pytest.approx(2 / 5)
