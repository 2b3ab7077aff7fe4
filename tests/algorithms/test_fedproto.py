"""FedProto against plain torch in float64, against training alone, and what goes up."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import FedProto, Separate
from personafl.errors import ConfigError, ModelError
from tests.oracles.classifiers import (
    CLASSES,
    LR,
    STEPS,
    WIDTH,
    assert_close,
    cohorts,
    model,
    net_at,
    personal,
    samples,
    trained,
    vector,
)


def oracle(lam: float, cohorts: list[list[int]], cut: int):
    """The paper's algorithm with ordinary modules; features are what comes out of the first `cut` layers."""
    own, prototypes = {m: vector(model()) for m in range(3)}, {}
    for cohort in cohorts:
        found: dict[int, list] = {}
        for m in cohort:
            net, (x, y) = net_at(own[m]), samples(m)
            optimizer = torch.optim.SGD(net.parameters(), LR)
            for _ in range(STEPS):
                features = net[:cut](x)
                loss = F.cross_entropy(net[cut:](features), y)
                for k, label in enumerate(y.tolist()):
                    if label in prototypes:
                        loss = loss + lam * F.mse_loss(features[k], prototypes[label]) / len(y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            own[m] = vector(net)
            for label in set(y.tolist()):
                found.setdefault(label, []).append(net[:cut](x[y == label]).detach())
        prototypes |= {label: torch.cat(parts).mean(0) for label, parts in found.items()}
    return torch.stack(list(own.values())), prototypes


@pytest.mark.parametrize("layer, cut", [("", 4), ("2.input", 2)])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, layer, cut):
    made = trained(FedProto(lam=2.0), tmp_path, rounds=4, features=layer)
    own, prototypes = oracle(2.0, [[0, 1, 2]] * 4, cut)
    assert_close(personal(made), own)
    assert_close(made.server["prototypes"], torch.stack([prototypes[c] for c in range(CLASSES)]))


def test_a_class_keeps_its_prototype_while_nobody_who_has_it_is_active(tmp_path):
    """The first client has no sample of class 2, and is alone in some round."""
    made = trained(FedProto(lam=2.0), tmp_path, rounds=0, activity=0.34)
    active = cohorts(made, 8)
    assert [0] in active[active.index([1]) :] and {len(cohort) for cohort in active} == {1}
    for cohort in active:
        before = made.server["prototypes"][2].clone()
        made.step()
        assert torch.equal(before, made.server["prototypes"][2]) is (cohort == [0])
    own, prototypes = oracle(2.0, active, 4)
    assert_close(personal(made), own)
    assert_close(made.server["prototypes"], torch.stack([prototypes[c] for c in range(CLASSES)]))


@pytest.mark.parametrize("algorithm, rounds", [(FedProto(lam=0.0), 4), (FedProto(lam=5.0), 1)])
def test_without_a_weight_and_in_the_first_round_everybody_trains_alone(tmp_path, algorithm, rounds):
    ours, alone = trained(algorithm, tmp_path / "a", rounds), trained(Separate(), tmp_path / "b", rounds)
    assert_close(personal(ours), personal(alone), scale=0.1)


def test_prototypes_go_up_and_no_parameters(tmp_path):
    made = trained(FedProto(), tmp_path, rounds=2)
    assert made.traffic["bytes_up"] == 2 * 3 * 4 * CLASSES * (WIDTH + 1)
    assert made.traffic["bytes_down"] == 2 * 3 * 4 * CLASSES * (WIDTH + 1)
    assert made.algorithm.global_model(made.server) is None


def test_prototypes_without_classes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="fedproto takes the mean of features over each class: it needs a class"):
        trained(FedProto(), tmp_path, rounds=1, loss="mse")


@pytest.mark.parametrize(
    "net, features, message",
    [
        (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), "", "fedproto: the last layer of the model must be linear"),
        (model(), "1", "local.features = '1': fedproto must know the number of features, so name a linear layer"),
    ],
)
def test_features_of_unknown_number_are_refused(tmp_path, net, features, message):
    with pytest.raises(ConfigError, match=message) as error:
        trained(FedProto(), tmp_path, rounds=1, net=net, features=features)
    assert "\n" not in str(error.value)


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return {"logits": self.head(self.body(x)), "features": x}


def test_features_of_another_number_than_the_layers_tell_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"the model gives 4 features a sample, but 5 go through the layer"):
        trained(FedProto(), tmp_path, rounds=1, net=Returns())


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm.lam = -1.0: must be at least 0"):
        FedProto(lam=-1.0)
