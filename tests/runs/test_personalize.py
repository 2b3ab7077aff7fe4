"""A client that joins after training gets a personalized model from every algorithm."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import personafl as pf
from personafl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Ditto,
    FedAMP,
    FedAvg,
    FedAvgFT,
    FedPer,
    PerFedAvg,
    PFedMe,
    Separate,
)
from personafl.algorithms.extras import trained_task
from personafl.errors import DataError
from personafl.kernels.task import Task
from personafl.settings import Local
from tests.archetypes import FOR_TWO_LAYERS, archetypes
from tests.oracles.quadratic import quadratics

LR, STEPS = 0.02, 5
QUICK = {name: {"distill_epochs": 1} for name in ("persfl", "persfl-gd")}
QUIET = {"progress": False, "threads": 1}


@pytest.fixture(scope="module")
def federation() -> pf.Federation:
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=6, alpha=1.0), seed=1)


def files(run: pf.Run) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", archetypes(FOR_TWO_LAYERS))
def test_every_algorithm_has_a_model_for_a_newcomer_and_the_run_stays_as_it_is(federation, tmp_path, name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    local = Local(lr=0.1, steps=15)
    algorithm = ALGORITHMS[name](**QUICK.get(name, {}))
    run = pf.train(federation, model, algorithm, rounds=3, local=local, out=tmp_path / "run", **QUIET)
    before = files(run)
    x, y = pf.data.build(pf.data.Digits(), pf.partition.IID(clients=15), seed=9).client("client-4")["train"]
    net = run.personalize(x, y)
    wanted = trained_task(algorithm, Task(model)).template  # some put another module around it
    assert [p.shape for p in net.parameters()] == [p.shape for p in wanted.parameters()]
    assert all(p.isfinite().all() for p in net.parameters()) and not net.training
    again = pf.load(run.path, module=model).personalize(x.numpy(), y.tolist())
    assert all(a.equal(b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert files(run) == before
    with torch.no_grad():
        assert nn.functional.cross_entropy(net(x), y) < nn.functional.cross_entropy(model(x), y)


# --- on quadratics, where the answer is known


class Newcomer:
    """F(w) = mean (x·w − y)² = ½ (w − z)ᵀ A (w − z) + constant."""

    def __init__(self, d: int = 3) -> None:
        draw = np.random.default_rng(42)
        self.x = draw.standard_normal((14, d)).astype(np.float32)
        self.y = (self.x @ np.array([3.0, -1.0, 2.0]) + 0.1 * draw.standard_normal(14)).astype(np.float32)
        exact = self.x.astype(np.float64)
        self.A = 2 * exact.T @ exact / 14
        self.z = np.linalg.lstsq(exact, self.y.astype(np.float64), rcond=None)[0]

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.A @ (w - self.z)


def trained(algorithm: Algorithm) -> pf.Run:
    module = nn.Linear(3, 1, bias=False)
    nn.init.ones_(module.weight)
    local = Local(lr=LR, batch_size=0, steps=STEPS)
    return pf.train(quadratics().federation, module, algorithm, rounds=3, local=local, **QUIET)


def fedavg(new: Newcomer, w: np.ndarray) -> np.ndarray:
    for _ in range(STEPS):
        w = w - LR * new.gradient(w)
    return w


def fedavg_ft(new: Newcomer, w: np.ndarray) -> np.ndarray:
    for _ in range(7):
        w = w - LR * new.gradient(w)
    return w


def ditto(new: Newcomer, w: np.ndarray) -> np.ndarray:
    v = w
    for _ in range(STEPS):
        v = v - LR * (new.gradient(v) + 2.0 * (v - w))
    return v


def perfedavg(new: Newcomer, w: np.ndarray) -> np.ndarray:
    return w - 0.1 * new.gradient(w)


def pfedme(new: Newcomer, w: np.ndarray) -> np.ndarray:
    theta = w
    for _ in range(STEPS):
        for _ in range(4):
            theta = theta - 0.03 * (new.gradient(theta) + 5.0 * (theta - w))
        w = w - LR * 5.0 * (w - theta)
    return theta


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        (FedAvg(), fedavg),
        (FedAvgFT(fine_tune_steps=7), fedavg_ft),
        (Ditto(lam=2.0), ditto),
        (PerFedAvg(alpha=0.1), perfedavg),
        (PFedMe(lam=5.0, personal_lr=0.03, inner_steps=4), pfedme),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_newcomer_follows_the_rule_of_the_algorithm(algorithm, rule):
    run, new = trained(algorithm), Newcomer()
    w = run.global_model().weight[0].detach().double().numpy()
    found = run.personalize(new.x, new.y).weight[0].detach().numpy()
    np.testing.assert_allclose(found, rule(new, w), rtol=1e-4, atol=1e-5)
    assert np.abs(found - w).max() > 1e-2


def test_a_newcomer_of_separate_starts_where_everybody_did():
    run, new = trained(Separate()), Newcomer()
    found = run.personalize(new.x, new.y).weight[0].detach().numpy()
    np.testing.assert_allclose(found, fedavg(new, np.ones(3)), rtol=1e-4, atol=1e-5)


def test_a_newcomer_of_fedper_with_everything_in_the_head_starts_where_everybody_did():
    run, new = trained(FedPer(head=1)), Newcomer()
    found = run.personalize(new.x, new.y).weight[0].detach().numpy()
    np.testing.assert_allclose(found, fedavg(new, np.ones(3)), rtol=1e-4, atol=1e-5)


def test_a_newcomer_of_fedamp_trains_from_the_mean_and_then_from_similar_models():
    sigma, alpha, rho = 20.0, 4.0, 1.5
    run, new = trained(FedAMP(sigma=sigma, alpha=alpha, lam=rho * alpha, pull=rho)), Newcomer()
    W = np.stack([run.personal(f"client-{m}").weight[0].detach().double().numpy() for m in range(4)])
    u = W.mean(0)
    for _ in range(2):
        w = u
        for _ in range(STEPS):
            w = (w - LR * new.gradient(w) + LR * rho * u) / (1 + LR * rho)
        xi = alpha * np.exp(-((w - W) ** 2).sum(1) / sigma) / sigma
        u = xi @ W + (1 - xi.sum()) * w
    np.testing.assert_allclose(run.personalize(new.x, new.y).weight[0].detach().numpy(), w, rtol=1e-4, atol=1e-5)


# --- what cannot be


@pytest.fixture(scope="module")
def run(federation) -> pf.Run:
    return pf.train(federation, nn.Linear(64, 10), FedAvg(), rounds=1, **QUIET)


def test_data_of_another_shape_is_refused(run):
    with pytest.raises(DataError, match=r"samples have shape \(8, 8\), the model wants \(64,\)"):
        run.personalize(np.ones((4, 8, 8)), [0, 1, 2, 3])
    with pytest.raises(DataError):
        run.personalize(np.ones((4, 64)), [0, 1, 2])


def test_labels_out_of_range_are_refused(run):
    with pytest.raises(DataError, match=r"labels outside 0\.\.9 in 1 client: newcomer"):
        run.personalize(np.ones((2, 64)), [0, 10])
    with pytest.raises(DataError, match="negative labels in 1 client: newcomer"):
        run.personalize(np.ones((2, 64)), [0, -1])


def test_no_data_is_refused(run):
    with pytest.raises(DataError):
        run.personalize(np.ones((0, 64)), np.ones(0, np.int64))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cli_run(tmp_path_factory):
    from personafl.config import parse
    from personafl.jobs import train_config

    # Full batches: which batches a client draws depends on its id, and so would the models compared below.
    settings = {"partition": {"name": "iid", "clients": 4}, "model": {"name": "mclr"}, "local": {"batch_size": 0}}
    config = parse({"rounds": 2, **settings})
    return train_config(config, tmp_path_factory.mktemp("cli") / "run")


def invoke(*arguments):
    from typer.testing import CliRunner

    from personafl.cli import app

    return CliRunner().invoke(app, ["personalize", *map(str, arguments)])


def save_digits(path, **arrays):
    np.savez(path, **{name: value.astype(np.float32) if "x" in name else value for name, value in arrays.items()})


def test_the_command_writes_the_models_of_a_folder_of_newcomers(cli_run, tmp_path):
    draw = np.random.default_rng(0)
    (tmp_path / "new").mkdir()
    for name in ("anna", "ben"):
        save_digits(
            tmp_path / "new" / f"{name}.npz",
            x_train=draw.random((12, 64)), y_train=draw.integers(0, 10, 12),
            x_test=draw.random((5, 64)), y_test=draw.integers(0, 10, 5),
        )  # fmt: skip
    out = tmp_path / "models.safetensors"
    done = invoke(cli_run.path, tmp_path / "new", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [row["client"] for row in answer["newcomers"]] == ["anna", "ben"]
    data = np.load(tmp_path / "new" / "ben.npz")
    net = cli_run.personalize(data["x_train"], data["y_train"])
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["clients"]) == ["anna", "ben"]
        for name, value in net.state_dict().items():
            torch.testing.assert_close(file.get_tensor(name)[1], value)
    with torch.no_grad():
        hits = (net(torch.from_numpy(data["x_test"])).argmax(1).numpy() == data["y_test"]).mean()
    assert answer["newcomers"][1]["correct"] == pytest.approx(hits)


def test_the_command_overwrites_nothing_and_says_what_is_wrong(cli_run, tmp_path):
    from personafl.errors import DataError

    save_digits(tmp_path / "new.npz", x=np.zeros((3, 64)), y=np.zeros(3, np.int64))
    out = tmp_path / "there.safetensors"
    out.write_text("mine")
    done = invoke(cli_run.path, tmp_path / "new.npz", "--out", out)
    assert isinstance(done.exception, DataError) and "exists already" in str(done.exception)
    assert out.read_text() == "mine"
    for missing in (tmp_path / "nobody.npz", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = invoke(cli_run.path, missing, "--out", tmp_path / "new.safetensors")
        assert isinstance(done.exception, DataError), done.output
        assert str(missing) in str(done.exception)
