"""What the server gets of a single site's update with secure aggregation: nothing that looks like it."""

import numpy as np
import pytest
import torch
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from personafl.algorithms import FedAvg
from personafl.backends.flower.messages import unpack
from personafl.training.accounting import epsilon
from personafl.training.clients import LocalClients
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, server_state

MODEL = {"name": "mlp", "hidden": [64]}


class Seen:
    """A run whose sites' true updates are recorded where they are made, and all that reaches the server."""

    def __init__(self, folder, monkeypatch, algorithm="fedavg", **more):
        self.updates, self.uploads = [], []
        trained, aggregated = LocalClients.train, FedAvg.aggregate

        def train(clients, round, ids, sent):
            answers = trained(clients, round, ids, sent)
            self.updates.append((answers.uploads.values["theta"][0].clone(), sent.shared["theta"].clone()))
            return answers

        def aggregate(algorithm, server, uploads):
            self.uploads.append(uploads)
            return aggregated(algorithm, server, uploads)

        monkeypatch.setattr(LocalClients, "train", train)
        monkeypatch.setattr(FedAvg, "aggregate", aggregate)
        grid = MemoryGrid(sites_of(folder / "sites", federation()))
        self.run = flower(folder / "flower", grid, algorithm, model=MODEL, rounds=2, eval_every=2, **more)
        self.arrays = [array for _, _, data in grid.left for array in arrays_in(data)]

    def looks_like(self) -> float:
        """The largest correlation of an array that reached the server with a single site's update or model."""
        found = [0.0]
        for array in self.arrays:
            for theta, sent in self.updates:
                for single in (theta, theta - sent):
                    if len(array) >= len(single):
                        found.append(abs(np.corrcoef(array[: len(single)], single.numpy())[0, 1]))
        return max(found)


def arrays_in(data: bytes) -> list[np.ndarray]:
    """Every array of a message, also as signed numbers, flat."""
    message = message_from_proto(ProtoMessage.FromString(data))
    if message.has_error():
        return []
    records = [unpack(message.content, key) for key in message.content.array_records]
    return [value.numpy().ravel().astype(np.float64) for record in records for value in record.values()]


def test_no_message_and_no_state_has_a_single_update(tmp_path, monkeypatch):
    seen = Seen(tmp_path, monkeypatch, secure={}, max_weight=1.0)
    assert len(seen.updates) == 6 and sum(len(a) > 400 for a in seen.arrays) == 6
    assert seen.looks_like() < 0.25  # of 450 numbers; by chance 0.05
    held = [value for uploads in seen.uploads for value in uploads.values.values()]
    assert all(len(value) == 1 for value in held)  # one row: the mean
    held += [value for value in server_state(seen.run).values() if value.dim()]
    for theta, _ in seen.updates:
        assert not any(
            (value.reshape(-1)[: len(theta)] - theta).abs().max() < 1e-4 for value in held if value.numel() > 9
        )


def test_the_same_without_it_is_found(tmp_path, monkeypatch):
    """So that the test above can fail."""
    assert Seen(tmp_path, monkeypatch).looks_like() > 0.9999


def test_the_masks_of_two_rounds_have_nothing_in_common(tmp_path, monkeypatch):
    seen = Seen(tmp_path, monkeypatch, secure={"bits": 64})
    masked = [a for a in seen.arrays if len(a) > 400]
    assert len(masked) == 6
    pairs = np.corrcoef(np.stack(masked)) - np.eye(6)
    assert np.abs(pairs).max() < 0.25


@pytest.mark.parametrize("noise", [0.5])
def test_the_sum_has_the_noise_that_was_asked_for(tmp_path, monkeypatch, noise):
    """From what sites would have sent without noise, of three: two are counted on, so there is √(3/2) of it."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    clip = 0.3
    exact = Seen(tmp_path / "exact", monkeypatch, secure={}, privacy={"clip": clip}, max_weight=1.0)
    noisy = Seen(tmp_path / "noisy", monkeypatch, secure={}, privacy={"clip": clip, "noise": noise}, max_weight=1.0)
    # The weights are 6, 9 and 12 samples, the largest as 1: what is summed is 27/12 times the mean.
    means = [seen.uploads[0].values["theta"][0].double() * 27 / 12 for seen in (exact, noisy)]
    found = (means[1] - means[0]).numpy()
    expected = noise * clip * np.sqrt(3 / 2)
    assert abs(found.std() / expected - 1) < 0.15 and abs(found.mean()) < 4 * expected / np.sqrt(len(found))
    assert np.linalg.norm(torch.stack([t - s for t, s in exact.updates[:3]]), axis=1).max() <= clip * (1 + 1e-5)
    row = noisy.run.clients().to_pylist()[0]
    assert row["epsilon"] == pytest.approx(epsilon(noise, 1e-5, 2), rel=1e-2)
