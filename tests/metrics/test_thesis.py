"""The tables of the PersFL thesis, computed again from its per-user accuracies."""

import numpy as np
import pytest

from personafl import metrics
from tests.metrics import thesis_tables as thesis

TABLES = {
    "6.2": thesis.CIFAR10,
    "6.3": thesis.MNIST,
    "6.4": thesis.FEDAVG_TEACHER,
    "6.6": thesis.PERSFL_GD,
}
CIFAR10 = thesis.columns(thesis.CIFAR10[:10], *thesis.METHODS)
CIFAR10 |= thesis.columns(thesis.PERSFL_GD[:10, :3], "PersFL-GD")
PUBLISHED = list(thesis.API)

ROUNDING = 0.05  # of each accuracy, and so of their mean
HALF = 0.005  # of what Table 6.8 prints


def qoi(method, split):
    return metrics.quantum_of_improvement(CIFAR10[method, split], CIFAR10["FedAvg", split])


@pytest.mark.parametrize("table", TABLES)
def test_the_means_and_standard_deviations_are_those_printed(table):
    *users, mean, spread = TABLES[table]
    for column, average, deviation in zip(np.transpose(users), mean, spread, strict=True):
        assert abs(metrics.mean_accuracy(column) - average) <= ROUNDING + 1e-9
        assert round(metrics.standard_deviation(column), 1) == deviation


def test_only_the_sample_standard_deviation_gives_the_printed_ones():
    """Equation 5.8 divides by K; the tables divide by K − 1."""
    columns = np.concatenate([table[:10] for table in TABLES.values()], axis=1).T
    printed = np.concatenate([table[11] for table in TABLES.values()])
    agree = {
        ddof: sum(round(metrics.standard_deviation(c, ddof), 1) == sd for c, sd in zip(columns, printed, strict=True))
        for ddof in (0, 1)
    }
    assert agree == {0: 13, 1: 42}


@pytest.mark.parametrize(("method", "split"), PUBLISHED)
def test_table_6_8_comes_out_within_the_rounding_of_the_accuracies(method, split):
    found = metrics.improvement_of(qoi(method, split))
    assert found.pui == 100
    assert found.pud == 0
    assert np.isnan([found.mpd, found.apd]).all()
    # QoI is a difference of two rounded accuracies, hence off by at most .1, and so are its median and mean.
    assert abs(found.mpi - thesis.MPI[method, split]) <= 2 * ROUNDING + HALF
    assert abs(found.api - thesis.API[method, split]) <= 2 * ROUNDING + HALF
    assert abs(metrics.mean_accuracy(CIFAR10[method, split]) - thesis.AA[method, split]) <= ROUNDING + HALF


def test_how_near_table_6_8_comes_out():
    off = {
        "mpi": [metrics.improvement_of(qoi(*key)).mpi - thesis.MPI[key] for key in PUBLISHED],
        "api": [metrics.improvement_of(qoi(*key)).api - thesis.API[key] for key in PUBLISHED],
        "aa": [metrics.mean_accuracy(CIFAR10[key]) - thesis.AA[key] for key in PUBLISHED],
    }
    assert {name: round(float(np.abs(values).max()), 2) for name, values in off.items()} == {
        "mpi": 0.05,
        "api": 0.02,
        "aa": 0.02,
    }


def test_the_improvement_of_table_6_8_is_over_fedavg_alone():
    """The printed AA − API is the mean of max(G, L), and is the mean of G: no L was above G, or L was not used."""
    for method, split in PUBLISHED:
        best = thesis.AA[method, split] - thesis.API[method, split]
        assert abs(best - CIFAR10["FedAvg", split].mean()) <= 2 * HALF + 1e-9


def test_what_the_text_says_of_persfl_gd():
    found = metrics.improvement_of(qoi("PersFL-GD", "DS-1"))
    assert abs(found.mpi - 38.23) <= 2 * ROUNDING + HALF
    assert abs(found.api - 36.47) <= 2 * ROUNDING + HALF
    assert abs(metrics.mean_accuracy(CIFAR10["PersFL-GD", "DS-1"]) - 81.45) <= ROUNDING + HALF
    assert abs(metrics.mean_accuracy(CIFAR10["PersFL-GD", "DS-3"]) - 81.64) <= ROUNDING + HALF


@pytest.mark.parametrize(
    ("split", "lowest_variance", "fairest"),
    [("DS-1", "Per-FedAvg", "PersFL"), ("DS-2", "pFedMe", "pFedMe"), ("DS-3", "FedPer", "PersFL")],
)
def test_what_the_text_says_of_fairness(split, lowest_variance, fairest):
    """Section 6.9, of Figure 6.9."""
    found = {m: metrics.fairness_of(qoi(m, split)).everybody for m in (*thesis.METHODS[1:], "PersFL-GD")}
    assert min(found, key=lambda m: found[m].av) == lowest_variance
    for name in ("cs", "entropy", "ji"):
        assert max(found, key=lambda m: getattr(found[m], name)) == fairest
    if split == "DS-1":
        by_ji = sorted(found, key=lambda m: -found[m].ji)
        assert by_ji[:2] == ["PersFL", "PersFL-GD"]


def test_jain_index_from_the_rounded_tables():
    """The thesis prints none; these are what its per-user accuracies give."""
    found = {m: [round(metrics.jain_index(qoi(m, s)), 3) for s in thesis.SPLITS] for m in thesis.METHODS[1:]}
    assert found == {
        "PersFL": [0.982, 0.976, 0.957],
        "FedPer": [0.974, 0.933, 0.952],
        "pFedMe": [0.942, 0.981, 0.934],
        "Per-FedAvg": [0.962, 0.957, 0.922],
    }


def test_the_motivating_example():
    """Table 5.1: the best mean accuracy helps two of nine users; Alg.2 helps most users, Alg.1 varies least."""
    example = thesis.EXAMPLE
    for name, printed in thesis.EXAMPLE_MEAN.items():
        assert round(metrics.mean_accuracy(example[name]), 2) == printed
    values = {
        name: metrics.quantum_of_improvement(accuracy, example["FedAvg"], example["local"])
        for name, accuracy in example.items()
        if name.startswith("Alg")
    }
    found = {name: metrics.improvement_of(each) for name, each in values.items()}
    assert found["Alg.4"].pui == pytest.approx(100 * 2 / 9)
    assert found["Alg.4"].pud == pytest.approx(100 * 7 / 9)
    assert found["Alg.4"].api == 24.0
    assert max(found, key=lambda name: found[name].pui) == "Alg.2"
    assert min(values, key=lambda name: metrics.average_variance(values[name])) == "Alg.1"


def test_the_reductions_of_section_6_2_are_ratios_of_rounded_deviations():
    mnist = thesis.columns(thesis.MNIST, *thesis.METHODS)
    cifar10 = thesis.columns(thesis.CIFAR10, *thesis.METHODS)
    claims = [
        (cifar10, "FedPer", "DS-1", 1.14, 1.15),
        (cifar10, "FedPer", "DS-3", 1.10, 1.10),
        (mnist, "Per-FedAvg", "DS-1", 1.5, 1.66),
        (mnist, "FedPer", "DS-3", 1.67, 1.56),
    ]
    for table, method, split, printed, unrounded in claims:
        assert round(table[method, split][11] / table["PersFL", split][11], 2) == printed
        deviation = {m: metrics.standard_deviation(table[m, split][:10]) for m in (method, "PersFL")}
        assert round(deviation[method] / deviation["PersFL"], 2) == unrounded
