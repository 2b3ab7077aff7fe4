"""Robust rules in their place: on all engines, for all algorithms, against clients that attack."""

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import ForSomeModels
from personafl.config import parse
from personafl.engines import make_engine
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.jobs import module_task
from personafl.storage.folder import RunFolder
from personafl.training.attackers import TOO_LONG, Attack, AttackedClients, flip_labels
from personafl.training.robust import RULES
from personafl.training.rounds import Origin, run_rounds

ORIGIN = Origin(resolved={"clients": 9, "fingerprint": "", "loss": "", "parameters": 1})
LOCAL = pf.Local(lr=0.2, batch_size=8, steps=4)
RULE_OF = {"clip": inf, "trimmed-mean": 0.0, "multi-krum": 0.0}
"""Rules that have a setting with which they are the mean."""
CLIP_ONLY = ("cfl", "fedamp", "heurfedamp", "mocha", "pfedhn", "heterofl")
NONE = (
    "afl", "fedbe", "feddyn", "fedfomo", "fedpac", "fedproto", "ifca", "lotteryfl", "qffl", "scaffold",
)  # fmt: skip


@cache
def federation() -> Federation:
    draw = np.random.default_rng(1)
    data = {}
    for m in range(9):
        x = draw.normal(size=(24 + 2 * m, 5)).astype(np.float32)
        y = (x[:, 0] + 0.3 * x[:, 1] * (m % 3) > 0).astype(np.int64)
        data[f"c{m}"] = {"train": (x[:-10], y[:-10]), "val": (x[-10:-6], y[-10:-6]), "test": (x[-6:], y[-6:])}
    return Federation.from_clients(data, classes=2)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


@cache
def trained(algorithm: str, robust: pf.Robust | None = None, engine: str = "stacked"):
    return pf.train(federation(), module(), algorithm, rounds=3, local=LOCAL, eval_every=0, seed=2, engine=engine,
                    threads=1, robust=robust, progress=False)  # fmt: skip


def models(run) -> torch.Tensor:
    return torch.stack([nn.utils.parameters_to_vector(run.personal(i).parameters()) for i in federation().ids]).detach()


def attacked(tmp_path, algorithm, attack, robust=None, rounds=3, data=None):
    """The global model (or the personalized ones) of a run with attackers, and its records."""
    data = data or federation()
    task = module_task(data, module())
    engine, _ = make_engine(pf.EngineSettings("stacked", 1), task, data, LOCAL, 2)
    folder = RunFolder(tmp_path)
    schedule = pf.Schedule(rounds=rounds, eval_every=0, checkpoint_every=0)
    run_rounds(folder, AttackedClients(engine, attack, folder=tmp_path), algorithm, schedule, ORIGIN, robust=robust)
    return pf.Run(tmp_path, algorithm=algorithm, task=task)


# --- the trivial setting is the mean -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "selffl"])
@pytest.mark.parametrize("rule", RULE_OF)
def test_with_its_trivial_setting_a_rule_is_the_mean(algorithm, rule):
    key = "factor" if rule == "clip" else "attackers"
    robust = pf.Robust(rule, max_weight_factor=inf, **{key: RULE_OF[rule]})
    torch.testing.assert_close(models(trained(algorithm, robust)), models(trained(algorithm)), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedamp", "selffl"])
def test_a_clip_that_clips_nobody_changes_no_bit(algorithm):
    robust = pf.Robust("clip", factor=1e6, max_weight_factor=1e6)
    assert torch.equal(models(trained(algorithm, robust)), models(trained(algorithm)))


# --- one definition for all engines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "algorithm"), [*((rule, "fedavg") for rule in RULES), ("median", "selffl"), ("clip", "fedamp")]
)
def test_engines_agree(rule, algorithm):
    robust = pf.Robust(rule, factor=1.0, max_weight_factor=1.2)
    found = [models(trained(algorithm, robust, engine)) for engine in ("loop", "stacked", "threaded")]
    assert (found[0] - models(trained(algorithm))).abs().max() > 1e-4, "the rule did nothing"
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_the_server_does_what_the_rule_says(rule):
    """A round of fedavg by hand, from the answers of all clients."""
    run = pf.train(federation(), module(), "fedavg", rounds=1, local=LOCAL, seed=2, engine="loop", progress=False)
    answers = models(run).double().numpy()  # the personalized model of fedavg is what a client sent
    start = nn.utils.parameters_to_vector(module().parameters()).detach().double().numpy()
    robust = pf.Robust(rule, factor=1.0, attackers=0.3, max_weight_factor=1.1)
    expected = by_hand(rule, answers, start, np.array(federation().sizes("train"), float))
    got = pf.train(federation(), module(), "fedavg", rounds=1, local=LOCAL, seed=2, engine="loop", robust=robust,
                   progress=False)  # fmt: skip
    common = nn.utils.parameters_to_vector(got.global_model().parameters()).detach()
    np.testing.assert_allclose(common.numpy(), expected, atol=2e-6)


def by_hand(rule, answers, start, weights):
    """The rules in plain numpy, a coordinate or a pair at a time, for nine answers, with f = 2 and factor 1."""
    if rule == "clip":
        lengths = np.array([np.linalg.norm(row - start) for row in answers])
        factors = [min(1.0, np.median(lengths) / length) for length in lengths]
        answers = np.array([start + c * (row - start) for c, row in zip(factors, answers, strict=True)])
    if rule in ("krum", "multi-krum"):
        scores = [sum(sorted(((row - other) ** 2).sum() for other in answers)[: 1 + 9 - 2 - 2]) for row in answers]
        chosen = np.argsort(scores)[: 1 if rule == "krum" else 7]
        answers, weights = answers[chosen], weights[chosen]
    weights = np.minimum(weights, 1.1 * np.median(weights))
    if rule == "geometric-median":
        z = answers.mean(0)
        for _ in range(2000):
            pull = weights / np.linalg.norm(answers - z, axis=1)
            z = pull @ answers / pull.sum()
        return z
    if rule in ("median", "trimmed-mean"):
        return np.array([middle(column, weights, 0.3 if rule == "trimmed-mean" else None) for column in answers.T])
    return weights @ answers / weights.sum()


def middle(column, weights, trim):
    """Weights as very many answers of the same weight."""
    many = np.sort(np.repeat(column, np.round(weights * 100).astype(int)))
    cut = 0 if trim is None else trim * len(many)
    if trim is None:
        return np.median(many)
    whole = int(np.ceil(cut))
    inner, part = many[whole : len(many) - whole], whole - cut
    return (inner.sum() + part * (many[whole - 1] + many[-whole])) / (len(many) - 2 * cut)


# --- attackers -----------------------------------------------------------------------------------------------------


def worst_move(tmp_path, algorithm, attack, robust) -> float:
    """How far the honest clients' models are from those of a run without attackers, the furthest of them."""
    run, plain = attacked(tmp_path, algorithm, attack, robust), trained(algorithm.name, robust)
    honest = [i for i in range(9) if i not in attack.clients]
    return float((models(run) - models(plain))[honest].norm(dim=1).max())


HOLD = [*(("selffl", rule) for rule in RULES), ("fedavg", "median"), ("ditto", "clip"), ("fedamp", "clip"),
        ("heurfedamp", "clip")]  # fmt: skip


@pytest.mark.parametrize(("name", "rule"), HOLD)
def test_two_of_nine_that_send_far_too_much_do_little(tmp_path, name, rule):
    attack, algorithm = Attack("scaled", (1, 4), 1e4), ALGORITHMS[name]()
    assert worst_move(tmp_path / "robust", algorithm, attack, pf.Robust(rule, attackers=0.23)) < 8
    if name != "fedamp":  # by distance, it does not attend to who is far away
        assert worst_move(tmp_path / "plain", algorithm, attack, None) > 100


def test_claimed_samples_are_bounded_by_the_median(tmp_path):
    attack, robust = Attack("count-inflated", (0,), 1e6), pf.Robust("median")
    assert worst_move(tmp_path / "a", pf.FedAvg(), attack, replace(robust, max_weight_factor=1.0)) < 0.3
    bent = worst_move(tmp_path / "b", pf.FedAvg(), attack, replace(robust, max_weight_factor=inf))
    assert bent > 2 * worst_move(tmp_path / "c", pf.FedAvg(), attack, replace(robust, max_weight_factor=1.0))


def test_a_robust_variance_between_clients_is_not_the_attackers(tmp_path):
    """Self-FL: σ0², by which everybody's weights go, is that of the honest models."""
    attack, found = Attack("scaled", (1, 4), 1e4), {}
    for rule in (None, *RULES):
        run = attacked(tmp_path / str(rule), pf.SelfFL(), attack, rule and pf.Robust(rule, attackers=0.23))
        found[rule] = np.nanmax(run.clients().column("sigma0_2").to_numpy())
    honest = np.nanmax(trained("selffl").clients().column("sigma0_2").to_numpy())
    assert found.pop(None) > 1e4 * honest
    assert max(found.values()) < 30 * honest


@pytest.mark.parametrize("kind", ["sign-flipped", "gaussian"])
def test_attacks_are_as_long_as_they_say(kind):
    rows, before = torch.randn(4, 3), torch.zeros(4, 3)
    up = pf.Uploads(torch.arange(4), torch.ones(4), {"theta": rows}, {"theta": pf.Mean(relative_to="theta")})
    made = Attack(kind, (1, 3), 5.0)(up, pf.Sent({"theta": before[0]}), 0, 1).values["theta"]
    assert torch.equal(made[[0, 2]], rows[[0, 2]])
    torch.testing.assert_close(made[[1, 3]].norm(dim=1), 5 * rows[[1, 3]].norm(dim=1))
    if kind == "sign-flipped":
        torch.testing.assert_close(made[[1, 3]], -5 * rows[[1, 3]])


def test_flipped_labels_are_those_of_the_attackers_training_data():
    data = federation()
    flipped = flip_labels(data, (2,))
    for client in data.ids:
        for split in ("train", "val", "test"):
            changed = (flipped.client(client)[split][1] != data.client(client)[split][1]).float().mean()
            assert changed == (client == "c2" and split == "train")


# --- updates that cannot be computed with --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("fedavg", 3e38), ("selffl", 1e20), ("heurfedamp", float("-inf")), ("ditto", float("nan"))]
)
def test_an_update_that_would_break_the_aggregate_is_left_out_by_name(tmp_path, name, value):
    def attack(uploads, sent, seed, round):
        values = {key: rows.clone() for key, rows in uploads.values.items()}
        values["theta"][3, 0] = value
        return replace(uploads, values=values)

    run = attacked(tmp_path, ALGORITHMS[name](), attack)
    assert all(record["dropped"] == {"c3": TOO_LONG} for record in run.rounds())
    assert bool(torch.isfinite(models(run)).all())


@pytest.mark.parametrize("engine", ["loop", "stacked", "threaded"])
def test_a_client_that_diverges_is_left_out_by_name_on_every_engine(engine):
    """Its features are so large that its first steps are longer than any model."""
    data = federation()
    start, size = int(data.starts("train")[3]), int(data.sizes("train")[3])
    x = data.x.clone()
    x[start : start + size] *= 1e17
    run = pf.train(replace(data, x=x), nn.Linear(5, 2), "fedavg", rounds=2, local=LOCAL, seed=2, engine=engine,
                   eval_every=0, progress=False)  # fmt: skip
    assert [record["failed"] for record in run.rounds()] == [["c3"], ["c3"]]
    assert all(bool(torch.isfinite(p).all()) for p in run.global_model().parameters())


# --- settings ------------------------------------------------------------------------------------------------------


def test_every_algorithm_takes_rules_or_says_in_a_line_why_not():
    for name, kind in ALGORITHMS.items():
        for rule in RULES:
            possible = name not in NONE and (rule == "clip" or name not in CLIP_ONLY)
            try:
                pf.Robust(rule).check(kind())
                assert possible, f"{name} takes {rule}"
            except ConfigError as error:
                assert not possible, f"{name} refuses {rule}: {error}"
                assert "\n" not in str(error) and "; " in str(error)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(NONE)))
def test_every_algorithm_that_takes_clipping_trains_with_it(name):
    kind = ALGORITHMS[name]
    layers = [nn.Linear(5, 4), *([nn.BatchNorm1d(4)] if name == "fedbn" else []), nn.ReLU(), nn.Linear(4, 2)]
    if issubclass(kind, ForSomeModels) and name == "heterofl":
        pytest.skip("widths: tests/algorithms/test_heterofl.py has the models")
    run = pf.train(federation(), nn.Sequential(*layers), kind(), rounds=1, local=replace(LOCAL, lr=0.1), seed=2,
                   engine="stacked", threads=1, robust=pf.Robust("clip", factor=1.0), progress=False)  # fmt: skip
    assert "robust" in run.rounds()[0] or name == "separate"


def test_a_config_has_the_table_and_run_toml_too(tmp_path):
    config = parse({"robust": {"rule": "trimmed-mean", "attackers": 0.1}})
    assert config.robust == pf.Robust("trimmed-mean", attackers=0.1)
    assert parse(config.tables()) == config
    run = trained("fedavg", config.robust)
    assert run.manifest["robust"] == {"rule": "trimmed-mean", "attackers": 0.1, "max_weight_factor": 3.0}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rule": "krumm"}, "rule"),
        ({"factor": 0.5}, "robust.factor"),
        ({"attackers": 0.5}, "robust.attackers"),
        ({"max_weight_factor": 0}, "robust.max_weight_factor"),
        ({"trim": 0.1}, "robust.trim"),
    ],
)
def test_a_wrong_table_is_refused(table, says):
    with pytest.raises(ConfigError, match=says):
        parse({"robust": table})


def test_a_rule_that_does_not_fit_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"\[robust\] rule = 'median' cannot be combined with fedamp"):
        parse({"algorithm": "fedamp", "robust": {"rule": "median"}})
    with pytest.raises(ConfigError, match="n ≥ 2f \\+ 3"):
        trained("fedavg", pf.Robust("krum", attackers=0.45))
    with pytest.raises(ConfigError, match="robust is 'median'"):
        trained("fedavg", "median")


def test_the_record_says_whose_update_was_clipped(tmp_path):
    run = attacked(tmp_path, pf.FedAvg(), Attack("scaled", (4,), 1e3), pf.Robust("clip"))
    for record in run.rounds():
        assert record["robust"]["c4"] < 0.05


def test_noise_for_a_mean_is_refused_where_there_is_no_mean():
    with pytest.raises(ConfigError, match=r'privacy\.noise_at = "server" is noise for a mean'):
        parse({"robust": {"rule": "median"}, "privacy": {"clip": 1.0, "noise": 1.0, "noise_at": "server"}})
