import numpy as np
import pytest
import torch

from personafl.algorithms import FedAvg, FedPer, Separate, Uploads
from personafl.errors import ConfigError
from tests.oracles.parts import (
    EVERYTHING,
    PARAMETERS,
    descended,
    initial,
    mean,
    model,
    personal,
    start,
    trained,
    vector,
)


def oracle(head: set[str], rounds: int, weighted: bool) -> list[dict[str, torch.Tensor]]:
    """FedPer in float64 with ordinary modules: after each round, everybody's current base and own head."""
    base = initial()
    heads = [{name: base[name] for name in head} for _ in range(3)]
    for _ in range(rounds):
        found = [descended({**base, **heads[m]}, m) for m in range(3)]
        heads = [{name: one[name] for name in head} for one in found]
        base = mean(found, weighted)
    return [{**base, **heads[m]} for m in range(3)]


HEADS = {
    "last layer": (FedPer(head=1), {"4.weight", "4.bias"}),
    "last two layers": (FedPer(head=2), {"2.weight", "2.bias", "4.weight", "4.bias"}),
    "the middle of the vector": (FedPer(head_names=("2",)), {"2.weight", "2.bias"}),
    "pieces here and there": (FedPer(head_names=("0.bias", "2.weight", "4.bias")), {"0.bias", "2.weight", "4.bias"}),
    "equal weights": (FedPer(head=1, weights="equal"), {"4.weight", "4.bias"}),
}


@pytest.mark.parametrize("case", HEADS)
def test_bases_are_averaged_and_heads_stay(tmp_path, case):
    """The personalized model is the current base with the client's own head."""
    algorithm, head = HEADS[case]
    expected = np.stack([vector(state) for state in oracle(head, 3, algorithm.weights == "samples")])
    np.testing.assert_allclose(personal(trained(algorithm, tmp_path)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(trained(algorithm, tmp_path, engine="loop")), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_without_a_head_the_base_is_the_server_of_fedavg(tmp_path, weights, batch_size):
    options = {"batch_size": batch_size, "clients": 6, "activity": 0.5}
    one = trained(FedPer(head=0, weights=weights), tmp_path, **options)
    two = trained(FedAvg(weights=weights), tmp_path, **options)
    assert one.server["base"].equal(two.server["theta"])
    np.testing.assert_array_equal(personal(one), np.tile(two.server["theta"].numpy(), (6, 1)))


@pytest.mark.parametrize("algorithm", [FedPer(head=3), FedPer(head_names=("4", "2", "0"))], ids=["count", "names"])
def test_with_everything_in_the_head_it_is_separate(tmp_path, algorithm):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one, two = trained(algorithm, tmp_path, **options), trained(Separate(), tmp_path, **options)
    np.testing.assert_array_equal(personal(one), personal(two))
    assert one.traffic == {"bytes_up": 0, "bytes_down": 0}


def test_identical_clients_have_identical_models(tmp_path):
    runner = trained(FedPer(), tmp_path, clients=1)
    np.testing.assert_allclose(personal(runner), personal(trained(Separate(), tmp_path, clients=1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "names"), [(1, ("4",)), (2, ("4", "2")), (1, ("4.bias", "4.weight")), (3, ("0", "2", "4"))]
)
def test_a_head_by_count_and_by_name_are_the_same(tmp_path, count, names):
    one, two = trained(FedPer(head=count), tmp_path), trained(FedPer(head_names=names), tmp_path)
    np.testing.assert_array_equal(personal(one), personal(two))
    assert one.traffic == two.traffic


def test_names_go_before_the_count(tmp_path):
    one, two = trained(FedPer(head=2, head_names=("4",)), tmp_path), trained(FedPer(head=1), tmp_path)
    np.testing.assert_array_equal(personal(one), personal(two))


@pytest.mark.parametrize("case", HEADS)
def test_only_the_base_travels(tmp_path, case):
    algorithm, head = HEADS[case]
    share = EVERYTHING - sum(PARAMETERS[name] for name in head)
    seen: list[Uploads] = []

    class Watched(type(algorithm)):  # type: ignore[misc]
        def aggregate(self, server, uploads):  # type: ignore[no-untyped-def]
            seen.append(uploads)
            return super().aggregate(server, uploads)

    runner = trained(Watched(**{f: getattr(algorithm, f) for f in ("head", "head_names", "weights")}), tmp_path)
    assert [{n: tuple(v.shape) for n, v in u.values.items()} for u in seen] == 3 * [{"base": (3, share)}]
    sent = runner.algorithm.send(runner.server, torch.arange(3))
    assert {n: tuple(v.shape) for n, v in sent.shared.items()} == {"base": (share,)} and not sent.each
    assert runner.traffic == {"bytes_up": 3 * 3 * 4 * share, "bytes_down": 3 * 3 * 4 * share}
    assert {n: v.shape[1] for n, v in runner.clients.store.get(np.arange(3)).items()} == {"head": EVERYTHING - share}


def test_a_client_that_was_never_active_has_the_current_base_and_the_first_head(tmp_path):
    runner = trained(FedPer(head=1), tmp_path, rounds=1, clients=10, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() == 9
    expected = np.concatenate([runner.server["base"].numpy(), vector(model().state_dict())[-15:]])
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(expected, (9, 1)))
    assert not np.allclose(expected[:-15], vector(model().state_dict())[:-15])
    assert not np.allclose(personal(runner)[~idle][:, -15:], expected[-15:])


def test_a_head_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.head = 4: must be at most 3, the number of the model's layers"):
        start(FedPer(head=4), tmp_path)
    with pytest.raises(ConfigError, match=r"algorithm\.head = -1: must be at least 0"):
        FedPer(head=-1)
    with pytest.raises(ConfigError, match=r"head_names has 'fc2', but the model's parameters are 0\.weight, 0\.bias"):
        start(FedPer(head_names=("4", "fc2")), tmp_path)
    with pytest.raises(ConfigError, match=r"head_names has '4\.w'"):
        start(FedPer(head_names=("4.w",)), tmp_path)
