"""A site's policy: what it does not allow does not run, or does not leave, and the operator is told why."""

import json
import sys
from datetime import datetime

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord

from personafl.backends.flower.hours import is_within
from personafl.backends.flower.leaving import check_leaving
from personafl.backends.flower.pins import code_sha256, described
from personafl.backends.flower.policy import Policy, check_hours, read_policy
from personafl.backends.flower.policy_words import in_words
from personafl.backends.flower.site_data import read_site
from personafl.errors import ConfigError
from personafl.models import MODELS
from tests.backends.flower import problem
from tests.backends.flower.asking import SIZE, Operator
from tests.backends.flower.grid import MemoryGrid, sites_of

PARAMETERS = SIZE * 3 + 3


@pytest.fixture
def ann(tmp_path):
    return Operator(tmp_path)


def rule(ann, **policy):
    (ann.folder / "policy.toml").write_text(tomli_w.dumps(policy))


def refusal(ann, **job):
    with pytest.raises(ConfigError) as found:
        ann.train(ann.job(**job))
    return str(found.value)


# --- what runs


def test_names_that_are_not_listed_do_not_run(ann):
    rule(ann, algorithms=["ditto"])
    assert refusal(ann) == (
        "site ann: its policy allows the algorithms ditto, this run has 'fedavg' (policy: algorithms)"
    )
    rule(ann, models=["mlp"])
    assert "allows the models mlp, this run has 'mclr'" in refusal(ann)
    rule(ann, tasks=["regression"])
    assert "allows the tasks regression, this run has 'classification'" in refusal(ann)
    rule(ann, algorithms=["fedavg"], models=["mclr"], tasks=["classification"])
    assert ann.train(ann.job()).steps == 4


def test_code_that_is_not_what_was_reviewed_does_not_run(ann):
    rule(ann, code="0" * 64)
    assert "(policy: code)" in refusal(ann)
    rule(ann, code=code_sha256("personafl"))
    assert ann.train(ann.job()).steps == 4


def test_a_hash_of_code_changes_with_every_file(tmp_path, monkeypatch):
    package = tmp_path / "pinned_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen = {code_sha256("pinned_package")}
    for name, text in (("inner/__init__.py", "x = 1"), ("inner/more.py", ""), ("data.txt", "no code")):
        (package / name).write_text(text)
        code_sha256.cache_clear()
        seen.add(code_sha256("pinned_package"))
    assert len(seen) == 3 and "pinned_package" not in sys.modules


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package with a model of its own, of version 1.2."""
    package = tmp_path / "packages"
    package.mkdir()
    (package / "clinic_models.py").write_text(
        "from dataclasses import dataclass\nfrom personafl.models import MCLR\n\n"
        "@dataclass(frozen=True)\nclass Clinic(MCLR):\n    name = 'clinic'\n"
    )
    about = package / "clinic_models-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic-models\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[personafl.models]\nclinic = clinic_models:Clinic\n")
    monkeypatch.syspath_prepend(package)
    vars(MODELS).pop("_found", None)
    yield package / "clinic_models.py"
    for name in ("_found",):
        vars(MODELS).pop(name, None)
    MODELS._loaded.pop("clinic", None)
    sys.modules.pop("clinic_models", None)
    code_sha256.cache_clear()


def test_a_model_of_another_package_runs_if_it_is_pinned_and_as_it_was(ann, plugin):
    job = ann.job(model="clinic")
    sys.modules.pop("clinic_models")
    MODELS._loaded.clear()
    rule(ann, models=["clinic"])
    assert "model 'clinic' is of another package, clinic-models (clinic_models:Clinic)" in said(ann, job)
    pin = described(MODELS.plugins["clinic"])
    table = {"kind": "model", "name": "clinic", "version": "1.2", "sha256": pin.sha256}
    rule(ann, plugins=[{**table, "version": "1.1"}])
    assert "model 'clinic' has version 1.2 here, its policy pins 1.1" in said(ann, job)
    plugin.write_text(plugin.read_text() + "\nprint('more')\n")
    code_sha256.cache_clear()
    rule(ann, plugins=[table])
    assert "model 'clinic' has sha256" in said(ann, job)
    assert "clinic_models" not in sys.modules  # nothing of it was imported
    plugin.write_text(plugin.read_text().removesuffix("\nprint('more')\n"))
    code_sha256.cache_clear()
    assert ann.train(job).steps == 4


def said(ann, job):
    """What the site refuses a job with, whatever this process would have to import to ask."""
    from personafl.algorithms import Sent
    from personafl.backends.flower.job import Order

    theta = torch.zeros(PARAMETERS)
    with pytest.raises(ConfigError) as found:
        ann.site.train(Order(job, 1, 0, 0, Sent({"theta": theta})), {})
    return str(found.value)


def test_weights_that_the_operator_sends_have_to_be_listed(ann):
    theta = torch.full((PARAMETERS,), 0.1)
    from personafl.algorithms import Sent
    from personafl.backends.flower.job import Order, fingerprint

    job = ann.job(theta0=fingerprint(theta))
    order = Order(job, 1, 0, 0, Sent({"theta": theta}), theta)
    upload = {"theta": ("float32", (PARAMETERS,))}
    rule(ann, weights=[])
    with pytest.raises(ConfigError, match="does not list the initial weights that are sent"):
        ann.site.train(order, upload)
    rule(ann, weights=[fingerprint(theta)])
    assert ann.site.train(order, upload).steps == 4
    rule(ann, weights=[])
    assert ann.train(ann.job()).steps == 4  # these follow from the seed


def test_secure_aggregation_can_be_demanded(ann):
    rule(ann, secure=True)
    assert "answers only with secure aggregation, and this run has none" in refusal(ann)


# --- what leaves


def test_an_array_that_may_not_leave_is_refused_before_training(ann):
    rule(ann, outgoing={"body": 10**6})
    assert refusal(ann) == "site ann: theta may not leave, its policy lets out body (policy: outgoing)"
    rule(ann, outgoing={"theta": 4 * PARAMETERS - 1})
    assert "theta may leave with at most 203 bytes, this has 204" in refusal(ann)
    assert not ann.site.ledger.entries()
    rule(ann, outgoing={"theta": 4 * PARAMETERS})
    assert ann.train(ann.job()).steps == 4


def test_what_code_would_smuggle_out_does_not_leave(ann):
    from flwr.app import RecordDict

    rule(ann, outgoing={"theta": 1000})
    samples = np.zeros((40, SIZE), np.float32)
    for name, key in (("up", "theta"), ("up", "x"), ("columns", "personal_loss"), ("more", "theta")):
        with pytest.raises(ConfigError, match=r"may (not )?leave"):
            check_leaving(ann.site, RecordDict({name: ArrayRecord({key: Array(samples)})}))
    check_leaving(ann.site, RecordDict({"columns": ArrayRecord({"personal_loss": Array(np.zeros(1))})}))


# --- when, and how often


def test_hours_are_local_and_go_on_after_midnight():
    wednesday = datetime(2026, 11, 18, 3, 0)
    assert is_within(("22:00-06:00",), wednesday) and not is_within(("thu 22:00-06:00",), wednesday)
    assert is_within(("tue 22:00-06:00",), wednesday) and not is_within(
        ("08:00-18:00", "sat,sun 00:00-24:00"), wednesday
    )
    assert is_within(("fri-mon 00:00-24:00",), datetime(2026, 11, 22, 23, 59))
    with pytest.raises(ConfigError, match=r"works in the hours 08:00-18:00, here it is Wed 03:00 \(policy: hours\)"):
        check_hours(Policy(hours=("08:00-18:00",)), wednesday)


def test_outside_of_its_hours_a_site_neither_trains_nor_measures(ann):
    assert ann.train(ann.job()).steps == 4
    now = datetime.now().hour
    rule(ann, hours=[f"{(now + 6) % 24:02}:00-{(now + 18) % 24:02}:00"])
    assert "it works in the hours" in refusal(ann) and "(policy: hours)" in refusal(ann)
    with pytest.raises(ConfigError, match=r"\(policy: hours\)"):
        ann.evaluate(ann.job(), torch.zeros(PARAMETERS), accepted=1)
    rule(ann, hours=["00:00-24:00"])
    assert ann.train(ann.job(), round=2).steps == 4


@pytest.mark.parametrize("window", ["8-18", "25:00-26:00", "10:00-10:00", "xyz 10:00-11:00", "10:61-11:00"])
def test_what_is_no_window_is_refused(ann, window):
    rule(ann, hours=[window])
    with pytest.raises(ConfigError, match=r"policy.toml: hours = .* must be a window of local time"):
        read_site(ann.file)


def test_rounds_are_counted_by_run_and_in_all(ann):
    rule(ann, most_rounds_per_run=1, most_rounds=2)
    first, second, third = (ann.job(seed=seed) for seed in range(3))
    ann.train(first)
    with pytest.raises(ConfigError, match="at most 1 rounds in a run, and has in 1"):
        ann.train(first, round=2)
    ann.train(second)
    with pytest.raises(ConfigError, match="at most 2 rounds in all, and has in 2"):
        ann.train(third)


# --- the file


def test_a_policy_has_the_limits_of_site_toml_in_their_place(ann):
    rule(ann, least_batch_size=32, least_noise=4.0)
    assert (read_site(ann.file).least_batch_size, read_site(ann.file).least_noise) == (32, 4.0)
    ann.file.write_text(ann.file.read_text() + "\nleast_noise = 8.0\n")
    with pytest.raises(ConfigError, match=r"least_noise is in .*site.toml and in policy.toml"):
        read_site(ann.file)


def test_a_policy_that_is_named_and_gone_stops_the_site(ann):
    ann.file.write_text(ann.file.read_text() + '\npolicy = "rules.toml"\n')
    with pytest.raises(ConfigError, match=r"rules.toml, which site.toml names as this site's policy"):
        read_site(ann.file)


def test_a_mistyped_key_is_named(ann):
    rule(ann, algorithm=["ditto"])
    with pytest.raises(ConfigError, match=r"policy.toml: unknown key 'algorithm' \(did you mean 'algorithms'\?\)"):
        read_policy(ann.folder / "policy.toml")


def test_in_plain_words():
    words = in_words(Policy(models=("mlp",), hours=("mon-fri 20:00-06:00",), least_noise=8.0, most_rounds_per_run=5))
    assert words["what runs"] == "all algorithms; models mlp; all tasks; nothing of other packages"
    assert words["when"] == "mon-fri 20:00-06:00 (local time)" and "least noise 8" in words["how it is hidden"]


# --- in a federation


def test_the_reason_reaches_the_operator_and_the_others_go_on(tmp_path):
    data = problem.federation()
    nodes = sites_of(tmp_path, data)
    (tmp_path / "site-4" / "policy.toml").write_text(tomli_w.dumps({"algorithms": ["ditto"]}))
    run = problem.flower(tmp_path / "operator", MemoryGrid(nodes), "fedavg", rounds=2)
    (first, second) = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    why = "site site-4: its policy allows the algorithms ditto, this run has 'fedavg' (policy: algorithms)"
    assert first["dropped"] == second["dropped"] == {"site-4": why}
    assert not list((tmp_path / "site-4").glob("state/*/*"))
