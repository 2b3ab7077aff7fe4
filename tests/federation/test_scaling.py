"""Facts about standardized features: they are what scikit-learn makes of the training samples, and of these alone."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from personafl import Federation
from personafl.errors import ConfigError


def unlike(kind=float, shape=(3,), seed=0):
    rng = np.random.default_rng(seed)
    data = {
        f"c{m}": (rng.normal(m, 1 + m, (20 + 7 * m, *shape)).astype(kind), rng.integers(0, 2, 20 + 7 * m))
        for m in range(5)
    }
    return Federation.from_clients(data)


def training(fed):
    return np.concatenate([fed.client(client)["train"][0].numpy() for client in fed.ids])


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4)])
def test_it_is_the_standard_scaler_of_all_training_samples(shape):
    fed = unlike(shape=shape)
    scaler = StandardScaler().fit(training(fed).reshape(-1, np.prod(shape)))
    made = fed.standardized()
    expected = scaler.transform(fed.x.numpy().reshape(len(fed.x), -1)).reshape(fed.x.shape)
    assert np.allclose(made.x, expected, atol=1e-5)
    assert np.allclose(training(made).mean(axis=0), 0, atol=1e-5) and np.allclose(
        training(made).std(axis=0), 1, atol=1e-5
    )
    assert np.allclose((fed.x - made.constants["mean"]) / made.constants["std"], made.x, atol=1e-5)


def test_test_samples_have_no_part_in_it():
    fed = unlike()
    changed = fed.x.clone()
    for m in range(len(fed)):
        changed[fed.bounds[m, 1] :][: fed.bounds[m, 3] - fed.bounds[m, 1]] += 1000
    other = Federation(changed, fed.y, fed.bounds, fed.ids).standardized()
    made = fed.standardized()
    assert torch.equal(other.constants["mean"], made.constants["mean"]) and torch.equal(
        other.constants["std"], made.constants["std"]
    )
    assert np.array_equal(training(other), training(made))


def test_a_feature_that_never_changes_becomes_zero():
    x = np.full((10, 3), 0.1)
    x[:, 1] = np.arange(10)
    x[:, 2] = 1e8
    made = Federation.from_clients({"a": (x, [0, 1] * 5)}, splits=(1, 0, 0)).standardized()
    assert not made.x[:, 0].any() and not made.x[:, 2].any() and made.constants["std"][0] == 1


def test_whole_numbers_become_floats_and_the_rest_stays(tmp_path):
    fed = Federation.from_clients(
        {"a": (np.arange(20, dtype=np.uint8)[:, None], [0, 1] * 10)}, class_names=("no", "yes")
    )
    made = fed.standardized()
    assert made.x.dtype == torch.float32 and made.class_names == ("no", "yes") and torch.equal(made.y, fed.y)
    made.save(tmp_path / "fed")
    assert torch.equal(Federation.load(tmp_path / "fed").constants["mean"], made.constants["mean"])


def test_it_is_done_once_and_only_to_measurements():
    with pytest.raises(ConfigError, match="standardized already"):
        unlike().standardized().standardized()
    words = Federation.from_clients({"a": ([[0], [1]], [0, 1])}, constants={"embedding": torch.zeros(3, 2)})
    with pytest.raises(ConfigError, match="not measurements"):
        words.standardized()
