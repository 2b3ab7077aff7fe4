"""What protects a federation of real processes from its members and its operator: robust rules, noise, pinned code."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.deploy.rehearsal import find_nginx
from personafl.backends.flower.pins import code_sha256
from personafl.backends.flower.policy import read_policy
from personafl.config import parse
from personafl.engines.loop import LoopEngine
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.runs.run import Run, load_run
from personafl.storage.folder import RunFolder
from personafl.training.accounting import epsilon, sample_epsilon
from personafl.training.attackers import Attack, AttackedClients
from personafl.training.rounds import run_rounds
from tests.backends.deploy.live import CLASSES, FEATURES, ORIGIN, PATIENCE, SITES, Live, in_one_process
from tests.backends.flower.problem import same, server_state

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def theta(run):
    return server_state(run)["server.theta"]


# --- robust rules

SIZE = 30.0
ATTACKING = f'''
"""Loaded by every Python of a site: what it sends has so many times its update."""

import sys

if sys.orig_argv[3:4] == ["do"]:
    import personafl.backends.flower.app as app
    from personafl.backends.flower.messages import pack, unpack

    honest = app._train

    def train(site, content):
        answer = honest(site, content)
        before, after = unpack(content, "shared")["theta"], unpack(answer, "up")["theta"]
        answer["up"] = pack({{"theta": before + (after - before) * {SIZE}}})
        return answer

    app._train = train
    app.client_app = app.make_client_app(app._find_site)
'''


@pytest.fixture
def attacking_site(live, tmp_path, monkeypatch):
    """West with a program of its own."""
    (tmp_path / "sitecustomize.py").write_text(ATTACKING)
    live.deployment.stop("west")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        live.deployment.restart_site("west", PATIENCE)
    yield
    live.deployment.stop("west")


def attacked_in_one_process(live, folder):
    """The present run on the loop engine, with the same attack by the same site."""
    config = parse(live.settings)
    task = Task(initialize(config.model, (FEATURES,), CLASSES, config.seed))
    engine = LoopEngine(task, live.federation, config.local, config.seed, threads=1)
    clients = AttackedClients(engine, Attack("scaled", (live.federation.ids.index("west"),), SIZE))
    place = RunFolder(folder)
    with place.lock():
        run_rounds(place, clients, config.algorithm, config.schedule, ORIGIN, robust=config.robust)
    return Run(folder, algorithm=config.algorithm, task=task)


@pytest.mark.parametrize("rule", ["clip", "median"])
def test_a_robust_rule_holds_against_a_site_that_sends_too_much(live, attacking_site, tmp_path, rule):
    """With real processes it is the loop's run with the same attack, and nearer to that without an attack."""
    live.begin("fedavg", {"max_norm_factor": 0.0}, rounds=2, robust={"rule": rule})
    ours = live.end()
    assert not live.dropped()
    reference = attacked_in_one_process(live, tmp_path / "attacked")
    assert same(server_state(ours), server_state(reference))
    if rule == "clip":
        assert all(set(record["robust"]) == {"west"} for record in ours.rounds())
    live.settings.pop("robust")
    honest, _ = in_one_process(live, tmp_path / "honest")
    plain = attacked_in_one_process(live, tmp_path / "plain")
    assert 2 * (theta(ours) - theta(honest)).norm() < (theta(plain) - theta(honest)).norm()


# --- noise


def test_the_noise_is_not_taken_off_by_another_run_with_another_clip(live, tmp_path):
    """If both had the same noise N, the means were y + zC·N and y + 2zC·N: twice the first minus the second is y."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    noisy = []
    for clip in (10.0, 20.0):
        live.begin("fedavg", rounds=1, privacy={"clip": clip, "noise": 3.0, "delta": 1e-5})
        noisy.append(theta(live.end()))
        assert not live.dropped()
    live.settings.pop("privacy")
    exact = theta(in_one_process(live, tmp_path / "loop")[0])
    weights = np.array([24, 32, 40]) / 96  # of the samples of each site
    spread = 30.0 * float(np.linalg.norm(weights))
    assert float((noisy[0] - exact).std()) == pytest.approx(spread, rel=0.25)
    assert float((2 * noisy[0] - noisy[1] - exact).abs().median()) > spread / 2


def test_noise_at_the_server_is_on_the_mean_and_on_no_answer(live, tmp_path):
    """Of the standard deviation zC times the largest share, 40 of 96 samples; the sites' ledgers have none."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    live.begin("fedavg", rounds=1, privacy={"clip": 10.0, "noise": 3.0, "delta": 1e-5, "noise_at": "server"})
    noisy = theta(live.end())
    assert not live.dropped()
    live.settings.pop("privacy")
    exact = theta(in_one_process(live, tmp_path / "loop")[0])
    assert float((noisy - exact).std()) == pytest.approx(30.0 * 40 / 96, rel=0.25)
    assert [last_update(live, name)["noise"] for name in SITES] == [0, 0, 0]


def test_self_fl_with_noise_has_the_epsilon_of_its_answers(live):
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    live.begin("selffl", rounds=2, privacy={"clip": 1.0, "noise": 4.0, "delta": 1e-5})
    run = live.end()
    assert not live.dropped() and torch.isfinite(theta(run)).all()
    assert run.clients().column("epsilon").to_pylist() == pytest.approx([epsilon(4.0, 1e-5, 2)] * 3, rel=1e-9)


def last_update(live, name):
    """The last line of a site's ledger about an answer."""
    lines = map(json.loads, (live.deployment.layout.site(name) / "ledger.jsonl").open())
    return [line for line in lines if line["what"] == "update"][-1]


def test_noise_in_shares_adds_up_to_what_was_asked_for(live, tmp_path):
    """Two of three are counted on, so that the sum of all has √(3/2) of it; the largest of its weights is 1."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    clip, noise, means = 0.3, 0.5, []
    for privacy in ({"clip": clip}, {"clip": clip, "noise": noise}):
        live.begin("fedavg", rounds=1, secure={}, privacy=privacy)
        means.append(theta(live.end()).double() * 96 / 40)
        assert not live.dropped()
    found = (means[1] - means[0]).numpy()
    expected = noise * clip * math.sqrt(3 / 2)
    assert found.std() == pytest.approx(expected, rel=0.25)
    assert abs(found.mean()) < 4 * expected / math.sqrt(len(found))
    for name in SITES:  # whose own share protects less
        assert last_update(live, name)["noise"] == pytest.approx(noise / math.sqrt(2))


def test_noise_in_every_step_is_counted_by_the_sites(live):
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    models = []
    for _ in range(2):  # the same run, to the seed
        live.begin("fedavg", rounds=1, privacy={"clip": 1.0, "noise": 2.0, "delta": 1e-5, "unit": "sample"})
        run = live.end()
        assert not live.dropped()
        models.append(theta(run))
    assert not torch.isclose(*models).any()
    for row in run.clients().to_pylist():  # two runs of 10 batches of 8 on average: they are the same job
        n = live.federation.client(row["client"])["train"][1].numel()
        assert row["epsilon"] == pytest.approx(sample_epsilon(2.0, 1e-5, 8 / n, 20), rel=1e-9)


# --- code of a site's own


@pytest.fixture(scope="module")
def with_package(tmp_path_factory):
    """A federation whose machines all have a package with a model; gives it and the SHA-256 of the package's code."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "clinic_models.py").write_text(
        "from dataclasses import dataclass\nfrom personafl.models import MCLR\n\n"
        "@dataclass(frozen=True)\nclass Clinic(MCLR):\n    name = 'clinic'\n"
    )
    about = folder / "clinic_models-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic-models\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[personafl.models]\nclinic = clinic_models:Clinic\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(folder)
        sha256 = code_sha256("clinic_models")
        live = Live(tmp_path_factory.mktemp("pinned"))
        with live.deployment:
            live.deployment.start()
            yield live, sha256
    code_sha256.cache_clear()


def test_a_package_runs_where_it_is_pinned_and_nowhere_else(with_package):
    live, sha256 = with_package
    pins = {"north": sha256, "south": "0" * 64}
    for name, pinned in pins.items():
        pin = {"kind": "model", "name": "clinic", "version": "1.2", "sha256": pinned}
        (live.deployment.layout.site(name) / "policy.toml").write_text(tomli_w.dumps({"plugins": [pin]}))
    live.begin("fedavg", rounds=1, model={"name": "clinic"})
    run = live.end()
    (dropped,) = live.dropped().values()
    assert set(dropped) == {"south", "west"}
    assert "model 'clinic' has sha256" in dropped["south"]
    assert "model 'clinic' is of another package, clinic-models (clinic_models:Clinic)" in dropped["west"]
    assert torch.isfinite(theta(run)).all() and live.states("north") and not live.states("west")


# --- what is on where nobody says anything


@pytest.mark.parametrize(("sites", "on"), [(3, "secure"), (2, "robust")])
def test_a_rehearsal_by_default_is_protected_and_says_so(tmp_path, sites, on):
    """`deploy init` and `deploy up` as they are: sums of three sites, a robust rule for two, policies at all."""
    folder, names = tmp_path / "federation", ("north", "south", "west")[:sites]
    init = personafl("deploy", "init", folder, "--sites", ",".join(names))
    assert init.returncode == 0, init.stderr
    more = [] if find_nginx() else ["--no-proxy"]
    done = personafl("deploy", "up", folder, "--rounds", "2", *more)
    assert done.returncode == 0, done.stderr
    said = {"secure": "secure aggregation: the operator gets sums", "robust": "a robust rule (clip)"}[on]
    assert f"Protected by {said}" in done.stderr and "each site's policy.toml, which allows this run" in done.stderr
    run = load_run(folder / "rehearsal-1" / "run")
    assert on in run.manifest and {"secure", "robust"} - {on} - run.manifest.keys()
    assert len(run.rounds()) == 2 and not any(record.get("dropped") for record in run.rounds())
    for name in names:
        policy = read_policy(folder / "rehearsal-1" / "sites" / name / "policy.toml")
        assert (policy.algorithms, policy.models, policy.secure) == (("ditto",), ("mlp",), on == "secure")
        assert policy.code == code_sha256("personafl")


def personafl(*words):
    command = [sys.executable, "-c", "from personafl.cli import main; main()", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)
