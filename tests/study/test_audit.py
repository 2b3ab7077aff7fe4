"""Who was in the training data: a model that has learned it by heart is found out, one that knows nothing is not."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.errors import ConfigError, RunError
from personafl.report import report_data
from personafl.report.page import page
from personafl.study.audit import FILE, Audit, audit, likelihood_ratio, read_audit, words
from personafl.study.shadows import Observed, redrawn

CLIENTS, TRAIN, TEST = 4, 20, 20


def random_labels(features=60):
    """Labels that follow from nothing: whoever knows them has seen them."""
    draw = np.random.default_rng(0)
    data = {}
    for m in range(CLIENTS):
        x = draw.standard_normal((TRAIN + TEST, features)).astype(np.float32)
        y = draw.integers(0, 4, TRAIN + TEST)
        data[f"c{m}"] = {"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}
    return pf.Federation.from_clients(data, classes=4)


def trained(out, algorithm="fedavg", steps=5, lr=0.5, **more):
    torch.manual_seed(0)
    local = pf.Local(lr=lr, batch_size=0, steps=steps)
    settings = {"rounds": 1, "engine": "stacked", "threads": 1, "eval_every": 0, "progress": False, **more}
    return pf.train(random_labels(), nn.Linear(60, 4), algorithm, local=local, out=out, **settings), random_labels()


@pytest.fixture(scope="module")
def overfit(tmp_path_factory):
    run, fed = trained(tmp_path_factory.mktemp("audit") / "run", pf.Ditto(lam=0.001), steps=40, lr=1.0)
    return run, audit(run, fed, shadows=8)


def test_what_was_learned_by_heart_is_found_out(overfit):
    _, found = overfit
    assert found.reproduced
    by_name = {(attack.target, attack.attack): attack for attack in found.attacks}
    assert {target for target, _ in by_name} == {"personal", "update", "global"}
    for target in ("personal", "update"):
        for attack in ("loss", "shadows"):
            one = by_name[target, attack]
            assert one.auc.value > 0.95 and one.auc.low > 0.9 and one.told_right > 0.85
            assert one.proven > 1 and one.epsilon is None
            # A sample that no shadow left out, or none had, is not told of.
            least = (80, 80) if attack == "loss" else (75, 75)
            assert least <= (one.members, one.others) <= (CLIENTS * TRAIN, CLIENTS * TEST)
            assert len(one.clients) == CLIENTS and min(c.value for c in one.clients.values()) > 0.9
    assert by_name["global", "loss"].auc.value < by_name["personal", "loss"].auc.value
    assert any("sorts 9" in line or "sorts 100" in line for line in words(found))


@pytest.mark.parametrize("kind", ["untrained", "noise at clients", "noise by sample"])
def test_what_tells_nothing_is_not_found_out(tmp_path, kind):
    more = {
        "untrained": {"lr": 1e-30},
        "noise at clients": {"privacy": pf.Privacy(1.0, 20.0)},
        "noise by sample": {"privacy": pf.Privacy(1.0, 200.0, unit="sample")},
    }[kind]
    found = audit(*trained(tmp_path / "run", **more), shadows=5)
    covered = [a for a in found.attacks if kind != "noise at clients" or a.target == "global"]
    for attack in covered:
        assert attack.auc.low <= 0.5 <= attack.auc.high, (attack.target, attack.attack)
        assert attack.proven <= (attack.epsilon or np.inf)
    if kind != "untrained":
        assert all(attack.epsilon is not None for attack in covered)
        assert any("not told from chance" in line for line in words(found))


def test_likelihood_ratios_find_normal_distributions():
    """In scores N(1, 1), out N(0, 1): the ratio is s − 1/2, whatever the sample's own level; AUC Φ(1/√2)."""
    draw, n, many = np.random.default_rng(0), 3000, 40
    level = 3 * draw.standard_normal(n)

    def observed(inside):
        return Observed({"personal": -(level + inside + draw.standard_normal(n))}, inside, torch.zeros(1))

    shadows = [observed(draw.random(n) < 0.5) for _ in range(many)]
    target = observed(draw.random(n) < 0.5)
    found = likelihood_ratio("personal", target, shadows, classification=False)
    exact = -target.losses["personal"] - level - 0.5
    assert np.corrcoef(found, exact)[0, 1] > 0.9
    from personafl.metrics.membership import auc

    assert auc(found[target.inside], found[~target.inside]).value == pytest.approx(0.76, abs=0.03)
    by_loss = -target.losses["personal"]
    assert auc(by_loss[target.inside], by_loss[~target.inside]).value < 0.65, "levels hide it from the loss alone"


def test_shadows_redraw_training_and_test_samples_within_each_client():
    fed = random_labels()
    order = redrawn(fed, 0, 1)
    assert sorted(order) == list(range(len(fed.y))) and (order // (TRAIN + TEST) == np.arange(len(order)) // 40).all()
    inside = [set(redrawn(fed, 0, number)[:TRAIN]) for number in range(200)]
    share = np.mean([[j in one for j in range(40)] for one in inside], 0)
    assert np.abs(share - 0.5).max() < 0.15
    assert (redrawn(fed, 0, 1) == order).all() and (redrawn(fed, 1, 1) != order).any()


def test_the_report_has_it(overfit):
    run, found = overfit
    data = report_data([run.path])
    (one,) = data["audits"]
    assert one["words"] == words(found) and len(one["attacks"]) == len(found.attacks)
    assert one["attacks"][0]["auc"]["value"] == pytest.approx(found.attacks[0].auc.value, abs=1e-3)
    assert "Of 100 people" in page(data)


def test_a_damaged_audit_is_one_line(overfit, tmp_path):
    run, _ = overfit
    path = run.path / FILE
    good = path.read_text()
    for bad in ("{", "[]", good.replace('"value": ', '"value": 7'), good.replace("auc", "x"), '{"attacks": 3}'):
        path.write_text(bad)
        with pytest.raises(RunError, match=r"audit.json") as error:
            read_audit(run)
        assert "\n" not in str(error.value)
    path.write_text(good)
    assert read_audit(run)["shadows"] == 8


def test_data_and_runs_that_cannot_be_audited(overfit, tmp_path):
    run, _ = overfit
    with pytest.raises(RunError, match=r"made in Python: give it, pf.audit\(run, federation\)"):
        audit(run, shadows=0)
    with pytest.raises(RunError, match="trained on other data"):
        audit(run, random_labels(features=61), shadows=0)
    with pytest.raises(ConfigError, match=r"shadows = 2: must be at least 4, or 0"):
        audit(run, shadows=2)


def test_words_for_people():
    assert words(Audit((), 0, 0, False)) == [
        "Training again did not give the run's own models: this is about a run of the same settings."
    ]


def test_audit_is_public():
    assert pf.audit is audit
    assert json.dumps(Audit((), 0, 0, True).table())
