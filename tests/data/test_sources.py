"""Facts about data sources: they have the distribution that their definition says."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from personafl.data import IID, SOURCES, Digits, Samples, build
from personafl.errors import ConfigError
from personafl_papers.data.gaussian import Gaussian
from personafl_papers.data.synthetic import Synthetic


def test_the_registry_knows_sources_by_name():
    assert {"digits": Digits, "gaussian": Gaussian, "synthetic": Synthetic}.items() <= SOURCES.items()


def test_digits_are_real_pixels_between_0_and_1():
    fed = build(Digits(), IID(clients=10), seed=3)
    assert fed.x.shape == (1797, 64) and fed.x.dtype == torch.float32
    assert fed.x.min() == 0 and fed.x.max() == 1
    assert fed.classes == 10 and fed.name == "digits" and len(fed) == 10
    assert torch.bincount(fed.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_those_that_scikit_learn_reads():
    digits, labels = load_digits(return_X_y=True)
    assert np.array_equal(Digits().load(0).x, (digits / 16).astype(np.float32))
    assert np.array_equal(Digits().load(0).y, labels)


def test_digits_keep_each_image_with_its_label():
    raw = Digits().load(0)
    label_of = {image.tobytes(): label for image, label in zip(raw.x, raw.y, strict=True)}
    fed = build(Digits(), IID(clients=4), seed=1)
    assert all(label_of[x.tobytes()] == y for x, y in zip(fed.x.numpy(), fed.y.numpy(), strict=True))


@pytest.mark.parametrize(
    "make",
    [lambda seed: build(Digits(), IID(5), seed=seed)]
    + [lambda seed, source=source: build(source, seed=seed) for source in (Gaussian(), Synthetic(clients=3))],
)
def test_the_seed_decides(make):
    assert make(1).fingerprint == make(1).fingerprint != make(2).fingerprint


def test_gaussian_samples_follow_the_two_levels():
    fed = build(Gaussian(clients=4000, sigma0_2=0.25, sigma2=0.1, n_min=10, n_max=20), seed=0)
    theta, sizes = fed.truth["theta"], fed.sizes("train")
    assert theta.shape == (4000,)
    assert theta.mean() == pytest.approx(1.6, abs=0.03)
    assert theta.var() == pytest.approx(0.25, rel=0.08)
    assert np.bincount(sizes)[10:] == pytest.approx(4000 / 11, rel=0.25) and sizes.min() == 10 and sizes.max() == 20
    owner = np.repeat(np.arange(4000), fed.bounds[:, 3] - fed.bounds[:, 0])
    noise = fed.y.numpy()[:, 0] - theta[owner]
    assert noise.mean() == pytest.approx(0, abs=0.005)
    assert noise.var() == pytest.approx(0.1, rel=0.02)


def test_gaussian_is_a_regression_whose_weight_is_theta():
    fed = build(Gaussian(sigma2=0.0), seed=4)
    assert fed.classes is None and fed.y.shape == (len(fed.x), 1) and bool((fed.x == 1).all())
    assert (fed.sizes("val") == 0).all() and (fed.sizes("test") == 10).all()
    x, y = fed.client("client-7")["train"]
    net = torch.nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(fed.truth["theta"][7])
    assert torch.allclose(net(x), y)


def test_gaussian_test_samples_do_not_change_the_training_samples():
    few, many = (build(Gaussian(n_test=n), seed=0) for n in (0, 50))
    for client in few.ids:
        assert torch.equal(few.client(client)["train"][1], many.client(client)["train"][1])
    assert not torch.equal(*(many.client("client-0")[split][1][:10] for split in ("train", "test")))


def test_gaussian_cases_are_the_papers():
    first, second = Gaussian.case(1), Gaussian.case(2, n_test=3)
    assert first == Gaussian()
    assert (first.clients, first.theta0, first.sigma2, first.sigma0_2, first.n_min, first.n_max) == (
        20, 1.6, 0.1, 0.001, 10, 20,
    )  # fmt: skip
    assert (second.sigma0_2, second.n_min, second.n_max, second.n_test) == (1.0, 10, 200, 3)
    with pytest.raises(ConfigError, match="no case 3, only 1 and 2"):
        Gaussian.case(3)


def test_synthetic_labels_are_the_argmax_of_each_clients_model():
    fed = build(Synthetic(), seed=0)
    assert len(fed) == 30 and fed.x.shape[1] == 60 and fed.classes == 10
    right = 0
    for m, client in enumerate(fed.ids):
        for x, y in fed.client(client).values():
            scores = x.numpy() @ fed.truth["weight"][m].T + fed.truth["bias"][m]
            right += int((scores.argmax(axis=1) == y.numpy()).sum())
    assert right / len(fed.x) > 0.9999  # the store rounds x to float32, so a near tie may flip


def test_synthetic_splits_90_to_10():
    fed = build(Synthetic(), seed=0)
    total = fed.sizes("train") + fed.sizes("test")
    assert (fed.sizes("val") == 0).all() and np.abs(fed.sizes("test") - total / 10).max() <= 0.5
    assert (build(Synthetic(clients=2), splits=(0.5, 0.25, 0.25)).sizes("val") > 0).all()


def test_synthetic_statistics_match_the_definition():
    samples = Synthetic(alpha=0.25, beta=4.0, clients=1500, features=8, n_max=300).load(0)
    truth = samples.truth
    assert truth["u"].var() == pytest.approx(0.25, rel=0.15)  # alpha and beta are variances
    assert truth["B"].var() == pytest.approx(4.0, rel=0.15)
    assert (truth["weight"] - truth["u"][:, None, None]).var() == pytest.approx(1, rel=0.03)
    assert (truth["bias"] - truth["u"][:, None]).var() == pytest.approx(1, rel=0.05)
    assert (truth["v"] - truth["B"][:, None]).var() == pytest.approx(1, rel=0.05)
    owner = np.array([int(client.split("-")[1]) for client in samples.clients])
    noise = samples.x - truth["v"][owner]
    assert noise.var(axis=0) == pytest.approx(np.arange(1, 9) ** -1.2, rel=0.03)
    sizes = np.bincount(owner)
    assert sizes.min() >= 50 and np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.12)


def test_synthetic_without_variation_has_centered_models():
    truth = Synthetic(alpha=0.0, beta=0.0, clients=3).load(0).truth
    assert not truth["u"].any() and not truth["B"].any()


def test_synthetic_cap_is_kept_and_noted():
    fed = build(Synthetic(clients=20, n_max=60), seed=0)
    sizes = fed.bounds[:, 3] - fed.bounds[:, 0]
    assert sizes.max() == 60
    assert len(fed.notes) > 0 and all("samples cut to n_max = 60" in note for note in fed.notes)


def test_synthetic_clients_do_not_depend_on_how_many_there_are():
    few, more = (build(Synthetic(clients=n), seed=5) for n in (2, 12))
    for split in ("train", "test"):
        assert torch.equal(few.client("client-1")[split][0], more.client("client-1")[split][0])
    assert np.array_equal(more.truth["v"][:2], few.truth["v"])


@dataclass(frozen=True)
class Writers:
    """A source whose samples have natural owners, as EMNIST's have writers."""

    name: ClassVar[str] = "writers"
    structure: ClassVar[str] = "natural"
    splits: ClassVar[tuple[float, float, float]] = (0.5, 0.0, 0.5)

    def load(self, seed):
        writers = np.array(["w10", "w2", "w2", "w10", "w2", "w2"])
        hands = np.where(writers == "w2", "left", "right")
        return Samples(np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 0, 1]), 2, clients=writers, groups=hands)


def test_natural_owners_are_the_clients_unless_a_partition_is_given():
    natural = build(Writers())
    assert natural.ids == ("w2", "w10") and natural.groups == ("left", "right")
    assert natural.sizes("test").tolist() == [2, 1]
    dealt = build(Writers(), IID(3))
    assert dealt.ids == ("client-0", "client-1", "client-2") and dealt.groups is None


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: build(Digits()), "'digits' is a pool .* give a partition .iid, pathological, dirichlet"),
        (lambda: build(Gaussian(), IID()), "'gaussian' comes with its own clients: leave out .* 'iid'"),
        (lambda: build(Synthetic(), IID()), "'synthetic' comes with its own clients"),
        (lambda: build(Gaussian(), splits=(0.8, 0, 0.2)), "'gaussian' decides train and test itself"),
        (lambda: Gaussian(clients=0), "clients = 0 must be at least 1"),
        (lambda: Gaussian(sigma2=-1.0), "sigma2 = -1.0 must be 0 or more"),
        (lambda: Gaussian(sigma0_2=float("nan")), "sigma0_2 = nan"),
        (lambda: Gaussian(theta0=float("inf")), "theta0 = inf must be finite"),
        (lambda: Gaussian(n_min=30), "n_min = 30 and n_max = 20"),
        (lambda: Gaussian(n_test=-1), "n_test = -1"),
        (lambda: Synthetic(alpha=-0.5), "alpha = -0.5 must be 0 or more"),
        (lambda: Synthetic(classes=1), "classes = 1 must be at least 2"),
        (lambda: Synthetic(n_max=10), "n_max = 10 must be at least 50"),
    ],
)
def test_mistakes_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
