"""Settings are checked when they are made: one line that names key and value, from Python as from a config."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR, StepLR

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError
from personafl.metrics.measures import ACCURACY, LOSS
from personafl.settings import EngineSettings, Local, Schedule
from personafl.training.early_stopping import why_stop

WRONG = {
    "a function as lr": (Local, {"lr": lambda round: 0.1}, "local.lr = <function", "local.schedule"),
    "a text as lr": (Local, {"lr": "0.1"}, "local.lr = '0.1': must be a number", ""),
    "true as lr": (Local, {"lr": True}, "local.lr = True: must be a number", ""),
    "half a step": (Local, {"steps": 2.5}, "local.steps = 2.5: must be a whole number, or left out", ""),
    "an optimizer": (Local, {"optimizer": "rmsprop"}, "local.optimizer = 'rmsprop': must be sgd, adam or adamw", ""),
    "a torch optimizer": (Local, {"optimizer": torch.optim.Adam}, "local.optimizer = <class", "sgd, adam or adamw"),
    "momentum of adam": (Local, {"optimizer": "adam", "momentum": 0.9}, "local.momentum = 0.9", "local.betas"),
    "nesterov alone": (Local, {"nesterov": True}, "local.nesterov = True", "local.momentum above 0"),
    "betas of sgd": (Local, {"betas": (0.5, 0.9)}, "local.betas = (0.5, 0.9)", 'optimizer "adam"'),
    "one beta": (Local, {"optimizer": "adam", "betas": 0.9}, "local.betas = 0.9", "two numbers in [0, 1)"),
    "a beta of 1": (Local, {"optimizer": "adam", "betas": (0.9, 1.0)}, "local.betas", "two numbers in [0, 1)"),
    "no eps": (Local, {"optimizer": "adam", "eps": 0}, "local.eps = 0: must be above 0", ""),
    "clipping to nothing": (Local, {"clip_norm": 0.0}, "local.clip_norm = 0.0: must be above 0", ""),
    "a state": (Local, {"optimizer_state": "keep"}, "local.optimizer_state = 'keep'", '"kept" (by the client)'),
    "a schedule": (Local, {"schedule": "linear"}, "local.schedule = 'linear'", "constant, step or cosine"),
    "decay of a cosine": (Local, {"schedule": "cosine", "lr_decay": 0.5}, "local.lr_decay = 0.5", "left out"),
    "a length of steps": (Local, {"schedule_length": 9}, "local.schedule_length = 9", 'local.schedule "cosine"'),
    "warm-up beyond the end": (
        Local, {"schedule": "cosine", "schedule_length": 3, "warmup": 3}, "local.schedule_length = 3", "local.warmup",
    ),
    "lr_min above lr": (Local, {"schedule": "cosine", "lr_min": 1.0}, "local.lr_min = 1.0", "at most local.lr"),
    "groups as a list": (Local, {"groups": ["head"]}, "local.groups = ['head']", "a table of factors"),
    "a share above all": (Local, {"batch_share": 1.5}, "local.batch_share = 1.5: must be in (0, 1]", "or left out"),
    "a share of nothing": (Local, {"batch_share": 0.0}, "local.batch_share = 0.0", ""),
    "a share and everything": (
        Local, {"batch_size": 0, "batch_share": 0.5}, "local.batch_share = 0.5", "left out where local.batch_size is 0",
    ),
    "a negative factor": (Local, {"groups": {"head": -1}}, 'local.groups."head" = -1', "at least 0"),
    "half a round": (Schedule, {"rounds": 2.5}, "rounds = 2.5: must be a whole number", ""),
    "a text as rounds": (Schedule, {"rounds": "ten"}, "rounds = 'ten': must be a whole number", ""),
    "a function as activity": (Schedule, {"activity": len}, "activity = <built-in function len>: must be a num", ""),
    "no patience": (Schedule, {"patience": 0}, "patience = 0: must be at least 1, or left out", ""),
    "patience without evaluations": (Schedule, {"patience": 1, "eval_every": 0}, "patience = 1", "eval_every above 0"),
    "a negative min_delta": (Schedule, {"min_delta": -1.0}, "min_delta = -1.0: must be at least 0", ""),
    "half a thread": (EngineSettings, {"threads": 0.5}, "engine.threads = 0.5: must be a whole number", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_in_one_line(case):
    kind, given, begins, has = WRONG[case]
    with pytest.raises(ConfigError, match="^" + re.escape(begins)) as error:
        kind(**given)
    assert has in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"rounds": 2.5}, "rounds = 2.5: must be a whole number"),
        ({"threads": "two"}, "engine.threads = 'two': must be a whole number, or left out"),
        ({"rounds": 2, "patience": 1, "eval_every": 1}, "patience = 1: whether to stop is decided on validation data"),
    ],
)
def test_train_refuses_in_one_line(given, message):
    x, y = torch.zeros(8, 3), torch.arange(8) % 2
    federation = pf.Federation.from_clients({"a": {"train": (x, y), "test": (x, y)}})
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        pf.train(federation, nn.Linear(3, 2), progress=False, **{"eval_every": 1, **given})


def test_a_config_has_what_python_has():
    tables = {"optimizer": "adamw", "betas": [0.8, 0.99], "groups": {"head": 2.0, "*.bias": 0.5}, "warmup": 3}
    local = parse({"local": tables, "patience": 4, "min_delta": 0.001}).local
    assert local == Local(optimizer="adamw", betas=(0.8, 0.99), groups={"head": 2.0, "*.bias": 0.5}, warmup=3)
    assert parse({"local": local.table()}).local == local


def test_a_share_of_samples_is_rounded_up_but_not_by_what_floating_point_adds():
    share = Local(batch_size=1, batch_share=0.07)
    assert share.batch_sizes(np.array([1, 100, 101])).tolist() == [1, 7, 8] and 0.07 * 100 > 7
    assert Local(batch_size=10**30).batch_sizes(np.array([5]))[0] > 5, "as much as one likes"


def test_what_is_not_used_is_not_in_the_table_of_a_run():
    """Runs that know nothing of it are the same runs as before, for --resume and for comparisons."""
    assert list(Local(momentum=0.5).table()) == [
        "lr", "batch_size", "steps", "epochs", "momentum", "weight_decay", "lr_decay", "lr_decay_every", "held_back",
    ]  # fmt: skip
    assert "patience" not in Schedule().table() and Schedule(patience=3).table()["patience"] == 3


SCHEDULES = {
    "constant": ({}, lambda o: ConstantLR(o, 1.0)),
    "step": ({"lr_decay": 0.5, "lr_decay_every": 3}, lambda o: StepLR(o, 3, 0.5)),
    "cosine": ({"schedule": "cosine"}, lambda o: CosineAnnealingLR(o, 12)),
    "warm step": (
        {"schedule": "step", "lr_decay": 0.5, "lr_decay_every": 3, "warmup": 4},
        lambda o: SequentialLR(o, [LinearLR(o, 1 / 5, 1.0, 4), StepLR(o, 3, 0.5)], [4]),
    ),
    "warm cosine": (
        {"schedule": "cosine", "warmup": 2, "lr_min": 0.01},
        lambda o: SequentialLR(o, [LinearLR(o, 1 / 3, 1.0, 2), CosineAnnealingLR(o, 10, 0.01)], [2]),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_over_rounds_are_those_of_torch(name):
    given, make = SCHEDULES[name]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    scheduler, expected = make(optimizer), []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    local = Local(lr=0.1, **given).for_rounds(12)
    assert [local.rate(round) for round in range(1, 13)] == pytest.approx(expected, rel=1e-9)


def test_rates_over_steps_are_the_same_for_one_client_and_for_many():
    local = Local(lr=0.1, schedule="cosine", schedule_over="steps", warmup=2, lr_min=0.01)
    together = [local.step_rate(step, torch.tensor([4, 9])) for step in range(9)]
    for k, steps in enumerate((4, 9)):
        alone = [local.step_rate(step, steps) for step in range(steps)]
        many = [float(r if isinstance(r, float) else r[k]) for r in together[:steps]]
        assert many == pytest.approx(alone, rel=1e-6)


def test_a_cosine_takes_the_runs_rounds_unless_it_is_told_otherwise():
    assert Local(schedule="cosine").for_rounds(50).schedule_length == 50
    assert Local(schedule="cosine", schedule_length=80).for_rounds(50).schedule_length == 80
    assert Local(schedule="cosine", schedule_over="steps").for_rounds(50).schedule_length is None
    with pytest.raises(ConfigError, match=r"local\.schedule_length = 20: must be at least 50"):
        Local(schedule="cosine", schedule_length=20).for_rounds(50)
    with pytest.raises(ConfigError, match=r"local\.warmup = 60: must be less than the 50 rounds"):
        Local(schedule="cosine", warmup=60).for_rounds(50)


@pytest.mark.parametrize(
    "values, patience, min_delta, stops",
    [
        ([0.5, 0.6, 0.6, 0.6], 2, 0.0, True),
        ([0.5, 0.6, 0.6, 0.61], 2, 0.0, False),
        ([0.5, 0.6, 0.605, 0.609], 2, 0.01, True),
        ([0.5, 0.6, 0.55, 0.62, 0.61], 2, 0.0, False),
        ([float("nan"), float("nan")], 2, 0.0, True),
        ([float("nan"), 0.1, 0.2], 1, 0.0, False),
    ],
)
@pytest.mark.parametrize("measure", [ACCURACY, LOSS], ids=["accuracy", "loss"])
def test_patience_counts_evaluations_that_are_no_better(values, patience, min_delta, stops, measure):
    records = [
        {"round": 3 * k, f"personal_val_{measure.name}": measure.better * value} for k, value in enumerate(values)
    ]
    records.insert(1, {"round": 1})  # a round without an evaluation
    assert bool(why_stop(Schedule(patience=patience, min_delta=min_delta), measure, records)) is stops
