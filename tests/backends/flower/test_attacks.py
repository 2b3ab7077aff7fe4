"""Attacks by an operator who changes what is asked of a site, and what the site does about them."""

import numpy as np
import pytest
import torch

from personafl.algorithms import Sent
from personafl.backends.flower.job import Order
from personafl.errors import ConfigError
from tests.backends.flower.asking import CLASSES, LOCAL, SIZE, Operator, images

# --- the noise is taken off ----------------------------------------------------------------------------------------


def test_two_runs_with_the_same_seed_and_another_clip_do_not_take_the_noise_off(tmp_path):
    """If both answers had the same noise N, y + zC·N and y + 2zC·N: twice the first minus the second is y."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    ann = Operator(tmp_path)
    exact = Operator(tmp_path / "plain").train(ann.job()).up["theta"]
    one, two = (
        ann.train(ann.job(privacy={"clip": clip, "noise": 3.0, "delta": 1e-5})).up["theta"] for clip in (10.0, 20.0)
    )
    error = (2 * one - two - exact).abs()
    assert float(error.median()) > 10, "the update was recovered"
    assert float((one - exact).std()) == pytest.approx(30, rel=0.4)


# --- training samples are read off ---------------------------------------------------------------------------------


def recovered(ann: Operator, local: dict, algorithm="fedavg") -> np.ndarray:
    """The sample behind one step of one sample: each class's row of the gradient is a multiple of it."""
    before = torch.zeros(CLASSES * SIZE + CLASSES)
    after = ann.train(ann.job(algorithm, local=local), before).up["theta"]
    rows, biases = (before - after).split([CLASSES * SIZE, CLASSES])
    k = int(biases.abs().argmax())
    return (rows.view(CLASSES, SIZE)[k] / biases[k]).numpy()


ONE = {"lr": 0.1, "batch_size": 1, "steps": 1}
LAST = {"lr": 0.1, "batch_size": 39, "steps": 2, "weight_decay": 10.0}
"""The second batch of an epoch has one sample, and lr · weight_decay = 1 forgets the first."""
NO_LIMITS = {"least_batch_size": 1, "least_samples": 1}


@pytest.mark.parametrize("local", [ONE, LAST], ids=["one", "last"])
def test_without_limits_a_sample_is_read_off(tmp_path, local):
    """At a site that has given them up: the attacks below are attacks."""
    ann = Operator(tmp_path, **NO_LIMITS)
    assert min(np.abs(ann.data["train"][0] - recovered(ann, local)).max(1)) < 1e-6


WAYS = {
    "one step of one sample": ({}, "fedavg", "at least 8 samples (least_batch_size), this run has 1"),
    "an epoch of single samples": ({"steps": None, "epochs": 1}, "fedavg", "least_batch_size), this run has 1"),
    "many steps of one sample": ({"steps": 500}, "fedavg", "least_batch_size), this run has 1"),
    "one step of eight": ({"batch_size": 8}, "fedavg", "least_samples): 1 steps of 8 would use 8 of its 40"),
    "a last batch of one sample": (LAST | {"weight_decay": 0.0}, "fedavg", "one of its 40 weighs 0.5"),
    "and everything before it is forgotten": (LAST | {"steps": 40}, "fedavg", "one of its 40 weighs 1,"),
    "by a proximal term": (
        LAST | {"steps": 40, "weight_decay": 0.0}, {"name": "fedprox", "mu": 10.0}, "one of its 40 weighs 1,"
    ),
    "a learning rate of next to nothing": (LAST | {"lr": 1e-30, "weight_decay": 0.0}, "ditto", "weighs 0.5"),
    "by rates that rise within a round": (
        LAST | {"weight_decay": 0.0, "schedule_over": "steps", "warmup": 1000}, "fedavg", "one of its 40 weighs 0.67"
    ),
    "by a group that forgets": (
        LAST | {"lr": 0.001, "groups": {"head": 100.0}}, "fedavg", "one of its 40 weighs 1,"
    ),
    "by steps that Adam makes equally long": (
        LAST | {"weight_decay": 0.0, "steps": 40, "optimizer": "adam"}, "fedavg", "one of its 40 weighs 1,"
    ),
    "by clipping all but a small batch": (
        LAST | {"weight_decay": 0.0, "steps": 40, "clip_norm": 1e-6}, "fedavg", "one of its 40 weighs 1,"
    ),
    "the second of two batches of a step": (LAST | {"weight_decay": 0.0, "steps": 1}, "perfedavg", "weighs 1,"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_is_not_read_off(tmp_path, way):
    change, algorithm, reason = WAYS[way]
    ann = Operator(tmp_path)
    with pytest.raises(ConfigError) as refused:
        ann.train(ann.job(algorithm, local={k: v for k, v in (ONE | change).items() if v is not None}))
    assert reason in str(refused.value) and str(refused.value).startswith("site ann ")
    assert "\n" not in str(refused.value) and not (ann.folder / "ledger.jsonl").exists()


@pytest.mark.parametrize("samples", [1, 10])
def test_a_site_with_few_samples_does_not_answer(tmp_path, samples):
    ann = Operator(tmp_path, images(train=samples))
    with pytest.raises(ConfigError, match=r"least_batch_size|least_samples"):
        ann.train(ann.job(local={"lr": 0.1, "batch_size": 1000, "steps": 10}))


def test_steps_that_the_algorithm_chooses_are_counted(tmp_path):
    """Self-FL's ℓ follows from what the server sends, whatever the settings say."""
    ann = Operator(tmp_path, least_steps=3)
    job, known = ann.job("selffl"), {"sigma0_2": torch.tensor(1.0)}
    for round in (1, 2):
        assert ann.train(job, round=round, accepted=round - 1, **known).steps == 4
    with pytest.raises(ConfigError, match=r"answers after at least 3 steps \(least_steps\), this is 1"):
        ann.train(job, round=3, accepted=2, S=torch.tensor([1e30]), **known)
    assert ann.train(job, round=3, accepted=2, S=torch.tensor([0.0]), **known).steps == 40


def test_ordinary_training_is_within_the_limits(tmp_path):
    """Ragged batches too: 40 samples by 12 leave 4 for the last batch of an epoch."""
    ann = Operator(tmp_path)
    for number, algorithm in enumerate(["fedavg", "ditto", "scaffold", "perfedavg", "fedprox", "apfl"]):
        job = ann.job(algorithm, seed=number, local={"lr": 0.05, "batch_size": 12, "steps": 8, "weight_decay": 1e-3})
        assert ann.train(job).steps == 8


def test_who_sends_nothing_may_train_as_it_likes(tmp_path):
    ann = Operator(tmp_path)
    assert ann.train(ann.job("separate", local=ONE)).up == {}


# --- too much work -------------------------------------------------------------------------------------------------

MUCH = {
    "steps": ({"local": LOCAL | {"steps": 10**8}}, "most 1,000,000 steps (most_steps), this run asks for 100,000,000"),
    "more steps than numbers have": ({"local": LOCAL | {"steps": 10**30}}, "(most_steps), this run asks for 1,000,"),
    "epochs": ({"local": {"lr": 0.1, "batch_size": 8, "epochs": 10**9}}, "this run asks for 5,000,000,000"),
    "steps within steps": ({"algorithm": {"name": "pfedme", "inner_steps": 10**8}}, "most_steps"),
    "a wide model": (
        {"model": {"name": "mlp", "hidden": [10**5, 10**5]}, "theta0": "0"}, "parameters (most_parameters), this run"
    ),
    "a deep model": ({"model": {"name": "mlp", "hidden": [1] * 2000}, "theta0": "0"}, "of at most 1000 layers"),
    "many layers": ({"model": {"name": "lstm", "layers": 10**9}, "theta0": "0"}, "of at most 1000 layers"),
}  # fmt: skip


@pytest.mark.parametrize("what", MUCH)
def test_too_much_work_is_refused_before_it_is_begun(tmp_path, what):
    change, reason = MUCH[what]
    ann = Operator(tmp_path)
    job = ann.job(**change)
    order = Order(job, 1, 0, 0, Sent({"theta": ann.task({"name": "mclr"}).theta0}))
    with pytest.raises(ConfigError) as refused:
        ann.site.train(order, {"theta": ("float32", (CLASSES * SIZE + CLASSES,))})
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedavg-ft", "fine_tune_steps": 10**8}, {"name": "persfl", "distill_epochs": 10**8}], ids=str
)
def test_nor_before_an_evaluation(tmp_path, algorithm):
    ann = Operator(tmp_path)
    job = ann.job(algorithm)
    ann.train(job)
    with pytest.raises(ConfigError, match="most_steps"):
        ann.evaluate(job, ann.task({"name": "mclr"}).theta0, accepted=1, last=True)


# --- evaluation as an oracle ---------------------------------------------------------------------------------------


ONE_UNIT = {"name": "mlp", "hidden": [1]}


def query(weights: np.ndarray, threshold: float, scale: float) -> torch.Tensor:
    """A model whose logit of class 0 is scale · max(w·x − threshold, 0), and that of the others 0."""
    first = [*(scale * weights), -scale * threshold]
    return torch.tensor([*first, 1.0, *[0.0] * (CLASSES - 1), *[0.0] * CLASSES], dtype=torch.float32)


def read_test_sample(ask, scale: float = 1e4, margin: float = 10.0, halvings: int = 40) -> np.ndarray:
    """Find the one test sample that is furthest out in some direction, and read it off the sum of losses.

    `ask(theta)` is the sum of losses of a model. Below the threshold every sample costs the same; one that is above it
    by e, and not of class 0, costs scale · e more.
    """
    w = np.linspace(-1, 1, SIZE)
    none = ask(query(w, 100.0, scale))

    def above(weights, threshold):
        return ask(query(weights, threshold, scale)) - none

    low, high = -float(SIZE), float(SIZE)
    for _ in range(halvings):  # the highest threshold that somebody is above
        middle = (low + high) / 2
        low, high = (middle, high) if above(w, middle) > 0.5 else (low, middle)
    threshold = low - margin / scale
    base, step = above(w, threshold), 1e-2
    return np.array([(above(w + step * np.eye(SIZE)[j], threshold) - base) / (scale * step) for j in range(SIZE)])


def distance(ann: Operator, image: np.ndarray) -> float:
    return float(np.abs(ann.data["test"][0] - image).max(1).min())


def chosen(ann: Operator, trains: bool = False):
    """What the sum of losses of a chosen model is told to be; an AssertionError where it is not told."""
    job, rounds = ann.job(model=ONE_UNIT), iter(range(1, 1000))

    def ask(theta: torch.Tensor) -> float:
        round = next(rounds)
        if trains:
            ann.train(job, theta, round, round - 1)
        measured = ann.evaluate(job, theta, round, round if trains else 0)
        assert measured.withheld == "", measured.withheld
        return float(measured.columns["global_loss"][0])

    return ask


def test_models_that_nobody_trained_are_not_evaluated(tmp_path):
    """Whatever the round, and whatever the run is called."""
    ann = Operator(tmp_path)
    with pytest.raises(AssertionError, match="it trained 0 times in this run and reported metrics 0 times"):
        read_test_sample(chosen(ann))
    for seed in (1, 2):
        job = ann.job(seed=seed)
        assert ann.evaluate(job, ann.task({"name": "mclr"}, seed).theta0).columns == {}


@pytest.mark.parametrize(
    ("scale", "margin", "halvings"), [pytest.param(1e4, 10.0, 40, marks=pytest.mark.slow), (800.0, 0.2, 18)]
)
def test_with_training_in_between_a_test_sample_is_not_read_off(tmp_path, scale, margin, halvings):
    """A round for each question: a sample adds at most 10 to a sum of losses, and means are rounded. The second attack
    knows that, and stays below the bound."""
    ann = Operator(tmp_path)
    assert distance(ann, read_test_sample(chosen(ann, trains=True), scale, margin, halvings)) > 0.2


def test_one_evaluation_for_each_training(tmp_path):
    ann = Operator(tmp_path)
    job, theta0 = ann.job(), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    first = ann.evaluate(job, theta0 + 1, accepted=1)
    again = ann.evaluate(job, theta0 + 1, accepted=1)
    assert again.columns == first.columns != {} and again.withheld == ""
    other = ann.evaluate(job, theta0 + 2, accepted=1)
    assert other.columns == {} and "it trained 1 times in this run and reported metrics 1 times" in other.withheld
    assert ann.evaluate(job, theta0 + 2, round=2, accepted=1).columns == {}
    ann.train(job, round=2, accepted=1)
    ann.train(job, round=3, accepted=2)
    assert ann.evaluate(job, theta0 + 2, round=3, accepted=3).columns != {}
    more = ann.evaluate(job, theta0 + 3, round=3, accepted=3)
    assert more.columns == {} and more.withheld.endswith("it reported metrics of round 3 already, of another model")
    assert [entry.what for entry in ann.site.ledger.entries()] == ["update", "metrics", "update", "update", "metrics"]


def test_the_global_model_is_the_one_that_was_sent(tmp_path):
    """One evaluation is about one model: the server cannot have two measured at once."""
    ann = Operator(tmp_path)
    job, theta0 = ann.job(), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    with pytest.raises(ConfigError, match="the global model to evaluate is not the one that was sent"):
        ann.evaluate(job, theta0, accepted=1, common=theta0 + 1)
    smuggled = Order(job, 1, 1, 1, Sent({"theta": theta0}, {"theta": theta0[None] + 1}))
    with pytest.raises(ConfigError, match="the server sends theta, theta, by this site's code fedavg sends theta"):
        ann.site.measure(smuggled, False, theta0)


@pytest.mark.parametrize("table", [{"least_noise": 1.0}, {"most_epsilon": 50.0}], ids=str)
def test_a_site_that_asks_for_privacy_tells_no_metrics(tmp_path, table):
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    ann = Operator(tmp_path, **table)
    job, theta0 = ann.job(privacy={"clip": 1.0, "noise": 4.0, "delta": 1e-5}), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    for last in (False, True):
        measured = ann.evaluate(job, theta0, accepted=1, last=last)
        assert list(measured.columns) == ["epsilon"] and 1.9 < measured.columns["epsilon"][0] < 2.1
        assert "site ann reports no metrics: it asks for privacy" in measured.withheld
        assert (ann.folder / "models" / "personal.safetensors").exists() == last
    assert [entry.what for entry in ann.site.ledger.entries()] == ["update"]


def test_what_was_told_before_is_not_repeated_once_a_site_asks_for_privacy(tmp_path):
    ann = Operator(tmp_path)
    job, theta0 = ann.job(privacy={"clip": 1.0, "noise": 4.0, "delta": 1e-5}), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    assert "global_loss" in ann.evaluate(job, theta0, accepted=1).columns
    ann.file.write_text(ann.file.read_text() + "least_noise = 1.0\n")
    assert list(ann.evaluate(job, theta0, accepted=1).columns) == ["epsilon"]


def test_the_model_is_made_again_where_it_is_gone_and_the_answer_is_the_same(tmp_path):
    ann = Operator(tmp_path)
    job, theta0 = ann.job(), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    first = ann.evaluate(job, theta0, accepted=1, last=True)
    model = ann.folder / "models" / "personal.safetensors"
    before = model.read_bytes()
    model.unlink()
    assert ann.evaluate(job, theta0, accepted=1, last=True).columns == first.columns
    assert model.read_bytes() == before and len(ann.site.ledger.entries()) == 2


def test_a_site_may_tell_metrics_nevertheless(tmp_path):
    ann = Operator(tmp_path, most_epsilon=50.0, metrics=True)
    job, theta0 = ann.job(privacy={"clip": 1.0, "noise": 4.0, "delta": 1e-5}), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    assert "global_loss" in ann.evaluate(job, theta0, accepted=1).columns


def test_metrics_are_rounded(tmp_path):
    ann = Operator(tmp_path)
    job, theta0 = ann.job({"name": "apfl", "adaptive": True}), ann.task({"name": "mclr"}).theta0
    ann.train(job)
    told = ann.evaluate(job, theta0, accepted=1).columns
    exact = torch.nn.functional.cross_entropy(
        torch.from_numpy(ann.data["test"][0]) @ theta0[: CLASSES * SIZE].view(CLASSES, SIZE).T + theta0[-CLASSES:],
        torch.from_numpy(ann.data["test"][1]),
    )
    steps = told["global_loss"][0] / 12 / (2 / 12)
    assert steps == pytest.approx(float(exact) * 6, abs=0.5) and steps == pytest.approx(round(steps), abs=1e-9)
    assert told["global_correct"][0] in range(13)
    alpha = float(told["alpha"][0])
    assert alpha == pytest.approx(float(f"{alpha:.3g}"), rel=1e-6)
