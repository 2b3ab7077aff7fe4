"""What `Task` says of modules, data and losses that cannot be."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personafl.errors import ModelError
from personafl.kernels.task import Task
from tests.task_models import CLASSES, MODULES, assert_stacked_equals_single, dropout_net, labels, random


class FunctionalDropout(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, CLASSES)
        self.stats = nn.Module()
        self.stats.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.stats.calls += 1
        return self.body(x)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.sum() > 0 else -self.body(x)


@pytest.mark.parametrize("name", list(MODULES))
def test_ordinary_modules_pass_the_check_and_can_be_stacked(name):
    make, shape, _ = MODULES[name]
    task = Task(make())
    task.check(random(4, *shape), labels(4))
    assert task.unstackable(random(4, *shape), labels(4)) is None


def test_the_check_leaves_the_random_state_alone():
    layer, function = Task(dropout_net()), Task(FunctionalDropout(4, CLASSES))
    before = torch.get_rng_state()
    layer.check(random(4, 12), labels(4))
    function.check(random(4, 4), labels(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_instance_norm_with_running_statistics_is_named_with_a_way_out():
    layer = nn.InstanceNorm2d(4, track_running_stats=True)
    with pytest.raises(ModelError, match=r"'1\.0' \(InstanceNorm2d\).*track_running_stats=False.*eval\(\)"):
        Task(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Sequential(layer, nn.ReLU())))
    Task(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Sequential(layer.eval(), nn.ReLU())))


def test_a_buffer_changed_in_place_is_named():
    with pytest.raises(ModelError, match=r"buffer 'stats\.calls' is changed in place.*'stats'"):
        Task(Counting()).check(random(4, 4), labels(4))


def test_features_of_the_wrong_shape_or_type():
    with pytest.raises(ModelError, match=r"Linear fails on a batch of features \(4, 7\) float32.*shapes"):
        Task(nn.Linear(5, CLASSES)).check(random(4, 7), labels(4))
    with pytest.raises(ModelError, match=r"\(4, 5\) int64 and labels"):
        Task(nn.Linear(5, CLASSES)).check(labels(4, 5), labels(4))
    with pytest.raises(ModelError, match="needs one output for each target"):
        Task(nn.Linear(5, 2), "mse").check(random(4, 5), random(4))


def test_labels_beyond_the_outputs_are_an_error():
    with pytest.raises(ModelError):
        Task(nn.Linear(4, 2)).check(random(3, 4), torch.tensor([0, 1, 2]))


def test_labels_beyond_the_outputs_are_counted():
    with pytest.raises(ModelError, match="the model has 2 outputs but the data has label 2"):
        Task(nn.Linear(4, 2)).check(random(3, 4), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(), lambda o, y: F.cross_entropy(o, y, reduction="none")[:, None]],
    ids=["mean", "(n, 1)"],
)
def test_a_loss_must_give_one_value_a_sample(loss):
    with pytest.raises(ModelError):
        Task(nn.Linear(4, CLASSES), loss).check(random(5, 4), labels(5))


def test_one_dropout_layer_used_twice():
    drop = nn.Dropout(0.5)
    Task(nn.Sequential(nn.Linear(4, 4), drop, nn.Linear(4, CLASSES), drop)).check(random(5, 4), labels(5))


def test_two_dropout_layers():
    task = Task(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, CLASSES)))
    task.check(random(5, 4), labels(5))
    assert_stacked_equals_single(task, random(3, 6, 4), labels(3, 6))


def test_batch_norm_of_plain_features():
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, CLASSES)))
    task.check(random(5, 4), labels(5))
    assert_stacked_equals_single(task, random(3, 6, 4), labels(3, 6))


def test_lazy_modules_are_told_to_see_a_batch_first():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, CLASSES))
    with pytest.raises(ModelError, match=r"'0\.weight' is not initialized"):
        Task(lazy)
    lazy(random(2, 6))
    assert Task(lazy).size == 6 * 4 + 4 + 4 * 3 + 3


@pytest.mark.parametrize("module", [nn.Sequential(nn.Flatten()), nn.Linear(4, 3).requires_grad_(False)])
def test_nothing_to_learn(module):
    with pytest.raises(ModelError, match="no trainable parameters"):
        Task(module)


def test_a_branch_on_the_data_cannot_be_stacked_and_says_why():
    task = Task(Branching())
    task.check(random(4, 4), labels(4))
    assert "control flow" in task.unstackable(random(4, 4), labels(4))


def test_activation_size_counts_the_outputs_of_layers():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    # 5 + 5 + 3 by the layers, 3 by the sequence itself.
    assert Task(module).activation_size(random(9, 4)) == 16
