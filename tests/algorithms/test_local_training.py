"""A client alone is torch.optim on the same batches, whatever `[local]` asks for; and what algorithms take of it."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from personafl.algorithms import ALGORITHMS, SCAFFOLD, FedAMP, FedPer, PerFedAvg, PFedMe, Separate
from personafl.algorithms.base import Context
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.engines.work import StepBatches, Work
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.archetypes import FOR_TWO_LAYERS, SHORT_GRID, archetypes
from tests.oracles.quadratic import personal, quadratics, server, states, train

LR, ROUNDS = 0.02, 3


def federation() -> Federation:
    draw = np.random.default_rng(1)
    sizes = {"a": 13, "b": 30, "c": 4}
    data = {c: (draw.standard_normal((n, 6)).astype(np.float32), draw.integers(0, 3, n)) for c, n in sizes.items()}
    return Federation.from_clients(
        {c: {"train": pair, "val": pair, "test": pair} for c, pair in data.items()}, classes=3
    )


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def runner(algorithm, local: Local, folder, engine: str = "stacked") -> Runner:
    made = ENGINES[engine](trained_task(algorithm, Task(module())), federation(), local, seed=2, threads=1)
    return Runner(algorithm, LocalClients(made), Schedule(rounds=100, eval_every=0), RunFolder(folder), {})


def warm_cosine(optimizer, steps):
    parts = [LinearLR(optimizer, 1 / 3, 1.0, 2), CosineAnnealingLR(optimizer, max(steps - 2, 1), 0.001)]
    return SequentialLR(optimizer, parts, [2])


CASES = {
    "sgd": ({}, SGD, {}),
    "momentum": ({"momentum": 0.9, "weight_decay": 0.1}, SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": ({"momentum": 0.9, "nesterov": True}, SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": ({"optimizer": "adam", "weight_decay": 0.1}, Adam, {"weight_decay": 0.1}),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.1}, AdamW, {"weight_decay": 0.1}),
    "adamw's betas": (
        {"optimizer": "adamw", "betas": (0.5, 0.9), "eps": 0.01}, AdamW,
        {"betas": (0.5, 0.9), "eps": 0.01, "weight_decay": 0.0},
    ),
    "clipping": ({"clip_norm": 0.3}, SGD, {}),
    "adam, clipped": ({"optimizer": "adam", "clip_norm": 0.3}, Adam, {}),
    "step decay over steps": ({"schedule_over": "steps", "lr_decay": 0.5, "lr_decay_every": 2}, SGD, {}),
    "warm cosine over steps": (
        {"optimizer": "adam", "schedule": "cosine", "schedule_over": "steps", "warmup": 2, "lr_min": 0.001}, Adam, {},
    ),
    "groups": ({"groups": {"head": 3.0, "*.bias": 0.5}, "weight_decay": 0.1}, SGD, {"weight_decay": 0.1}),
    "groups of adamw": (
        {"optimizer": "adamw", "groups": {"body": 0.0, "2.bias": 0.5}, "weight_decay": 0.1}, AdamW,
        {"weight_decay": 0.1},
    ),
}  # fmt: skip
SCHEDULERS = {
    "step decay over steps": lambda optimizer, steps: StepLR(optimizer, 2, 0.5),
    "warm cosine over steps": warm_cosine,
}
FACTORS = {"groups": (1.0, 0.5, 3.0, 1.5), "groups of adamw": (0.0, 0.0, 1.0, 0.5)}


def by_torch(case: str, state: str, engine, client: int) -> np.ndarray:
    """What plain torch makes of a client's data, with the batches that the client draws."""
    _, kind, settings = CASES[case]
    net, fed = copy.deepcopy(module()), engine.federation
    factors = FACTORS.get(case, (1.0, 1.0, 1.0, 1.0))
    ids = np.array([client])
    steps = engine.local.default_steps(fed.sizes("train")[ids])
    for round in range(1, ROUNDS + 1):
        work = Work(Separate(), round, "train", ids, {}, None)
        plan = engine._plan(work, engine._keys(work), steps)
        if round == 1 or state == "fresh":
            optimizer = kind([{"params": [p]} for p in net.parameters()], lr=LR, **settings)
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = LR * factor
        scheduler = SCHEDULERS[case](optimizer, int(steps[0])) if case in SCHEDULERS else None
        for step in range(int(steps[0])):
            rows = plan.positions[0, step, : plan.counts[0, step]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(fed.x[rows]), fed.y[rows]).backward()
            if (longest := engine.local.clip_norm) is not None:
                clip_grad_norm_(net.parameters(), longest)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()


@pytest.mark.parametrize("engine", [pytest.param("loop", marks=pytest.mark.slow), "stacked"])  # they agree
@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize("case", CASES)
def test_a_client_alone_is_torch(tmp_path, case, state, engine):
    """Three clients of different sizes, so that their numbers of steps and their last batches differ."""
    local = Local(lr=LR, batch_size=5, epochs=2, optimizer_state=state, **CASES[case][0])
    run = runner(Separate(), local, tmp_path, engine)
    for _ in range(ROUNDS):
        run.step()
    theta = run.clients.store.get(np.arange(3))["theta"].numpy()
    for client in range(3):
        expected = by_torch(case, state, run.clients.engine, client)
        assert np.abs(expected - run.theta0.numpy()).max() > 0.01
        np.testing.assert_allclose(theta[client], expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adamw"}])
def test_a_state_that_is_kept_is_another_answer_and_is_not_sent(tmp_path, optimizer):
    found = {}
    for state in ("fresh", "kept"):
        run = runner(ALGORITHMS["ditto"](), Local(lr=LR, steps=3, optimizer_state=state, **optimizer), tmp_path)
        for _ in range(2):
            run.step()
        found[state] = run
    assert not torch.allclose(found["kept"].server["theta"], found["fresh"].server["theta"], atol=1e-4)
    assert found["kept"].traffic == found["fresh"].traffic
    kept = found["kept"].clients.store.like.keys() - found["fresh"].clients.store.like.keys()
    assert {name.split(".")[1] for name in kept} == {"y", "v"} and all(name.startswith("optimizer.") for name in kept)


def test_a_client_that_joins_late_begins_with_an_empty_optimizer(tmp_path):
    """With half of the clients active, who is active for the first time trains as with a fresh state."""
    first = {}
    for state in ("fresh", "kept"):
        local = Local(lr=LR, steps=3, momentum=0.9, optimizer_state=state)
        run = runner(Separate(), local, tmp_path)
        run.schedule = Schedule(rounds=100, activity=0.4, eval_every=0)
        while (run.active > 0).sum() < 3:
            run.step()
        first[state] = run.clients.store.get(np.flatnonzero(run.active == 1))["theta"]
    torch.testing.assert_close(first["fresh"], first["kept"])


# --- what each algorithm takes ---------------------------------------------------------------------------------

ANYTHING = {
    "adam": {"optimizer": "adam"},
    "adamw, kept": {"optimizer": "adamw", "weight_decay": 0.1, "optimizer_state": "kept"},
    "nesterov, kept": {"momentum": 0.5, "nesterov": True, "optimizer_state": "kept"},
    "clipping": {"clip_norm": 0.1},
    "groups": {"groups": {"head": 2.0, "*.bias": 0.5}},
    "cosine over steps": {"schedule": "cosine", "schedule_over": "steps", "warmup": 1},
    "cosine over rounds": {"schedule": "cosine", "schedule_length": 4, "warmup": 1},
}
REFUSED = {
    "scaffold": {"adam", "adamw, kept", "nesterov, kept", "clipping", "cosine over steps"},
    "qffl": {"adam", "adamw, kept"},
    "fedpa": {"adam", "adamw, kept", "cosine over steps"},
    "selffl": {"adam", "adamw, kept", "clipping", "groups", "cosine over steps"},
    "selffl-aug": {"adam", "adamw, kept", "clipping", "groups", "cosine over steps"},
}
WHY = {"scaffold": "mean gradient only of plain SGD", "selffl": "steps of SGD at one rate", "qffl": "is one of SGD"}
WHY["fedpa"] = "iterates of SGD at one rate"


@pytest.mark.parametrize("algorithm", archetypes(FOR_TWO_LAYERS, besides=REFUSED))
def test_every_algorithm_takes_what_its_equations_allow_and_says_why_not(tmp_path, algorithm):
    settings = SHORT_GRID if algorithm.startswith("persfl") else {}
    plain = runner(ALGORITHMS[algorithm](**settings), Local(lr=LR, steps=3), tmp_path)
    plain.step()
    for name, asked in ANYTHING.items():
        local = Local(lr=LR, steps=3, **asked)
        if name in REFUSED.get(algorithm, ()):
            with pytest.raises(ConfigError, match=WHY[algorithm.removesuffix("-aug")]) as error:
                runner(ALGORITHMS[algorithm](**settings), local, tmp_path)
            assert "\n" not in str(error.value) and str(error.value).startswith("local.")
            continue
        run = runner(ALGORITHMS[algorithm](**settings), local, tmp_path)
        run.step()
        same = {n: torch.equal(v, run.server[n]) for n, v in plain.server.items() if n not in ("round", "clients")}
        assert algorithm == "separate" or not any(
            same[n] for n in ("theta", "base", "body", "head", "models") if n in same
        ), name
        run._evaluate(last=True)


def test_selffl_takes_any_optimizer_where_its_steps_are_the_settings(tmp_path):
    run = runner(ALGORITHMS["selffl"](use_steps=False), Local(lr=LR, optimizer="adamw", clip_norm=1.0), tmp_path)
    for _ in range(4):
        run.step()
    assert (run.steps == 20).all()


def quadratic(A: torch.Tensor, z: torch.Tensor) -> StepBatches:
    return StepBatches(SimpleNamespace(per_sample=None), [None], lambda theta, *rest: A @ (theta - z))  # type: ignore[arg-type, list-item]


A = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 3.0]])
Z, ANCHOR = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.0, 0.5, 2.0])
MANY = {
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "adam": {"optimizer": "adam"},
    "clipping": {"clip_norm": 0.5},
    "groups": {},
}


def context(local: Local, factors: torch.Tensor | None = None) -> Context:
    one = torch.tensor(1)
    return Context(1, local.lr, local, one, one, one, one, factors=factors)


@pytest.mark.parametrize("case", MANY)
def test_fedamps_clients_end_at_the_optimum_of_equation_6(case):
    """argmin F(w) + (ρ/2) ‖w − u‖² is where (A + ρ) w = A z + ρ u."""
    local, rho = Local(lr=0.01, **MANY[case]), 0.7
    ctx = context(local, torch.tensor([1.0, 3.0, 0.5]) if case == "groups" else None)
    carry, sent = {"theta": torch.zeros(3)}, {"u": ANCHOR, "pull": torch.tensor(rho)}
    for _ in range(3000):
        carry = FedAMP().step(carry, sent, quadratic(A, Z), ctx)
    expected = torch.linalg.solve(A + rho * torch.eye(3), A @ Z + rho * ANCHOR)
    torch.testing.assert_close(carry["theta"], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", MANY)
def test_pfedmes_inner_steps_find_the_proximal_point_by_any_optimizer(case):
    local, lam = Local(lr=1e-9, **MANY[case]), 5.0  # w stays where it is
    ctx = context(local, torch.tensor([1.0, 3.0, 0.5]) if case == "groups" else None)
    carry = {"w": ANCHOR.clone(), "theta": torch.zeros(3)}
    PFedMe(lam=lam, personal_lr=0.01, inner_steps=2000).step(carry, {}, quadratic(A, Z), ctx)
    expected = torch.linalg.solve(A + lam * torch.eye(3), A @ Z + lam * ANCHOR)
    torch.testing.assert_close(carry["theta"], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9, "nesterov": True}, {"clip_norm": 1e-3}])
def test_perfedavg_adapts_by_a_plain_gradient_step(tmp_path, local):
    problem = quadratics()
    run = train(problem, PerFedAvg(alpha=0.05), tmp_path, rounds=2, **local)
    w = server(run)
    expected = [w - 0.05 * problem.A[m] @ (w - problem.z[m]) for m in range(4)]
    np.testing.assert_allclose(personal(run), expected, rtol=1e-4, atol=1e-6)


def test_scaffolds_control_variate_is_the_gradient_whatever_the_rate_of_a_group(tmp_path):
    """After one step from 0 with c = c_i = 0, c_i is the gradient there: −A z."""
    problem = quadratics()
    run = train(problem, SCAFFOLD(), tmp_path, rounds=1, steps=1, groups={"weight": 0.5})
    expected = [-problem.A[m] @ problem.z[m] for m in range(4)]
    np.testing.assert_allclose(states(run)["c"], expected, rtol=1e-4)
    with pytest.raises(ConfigError, match=r"local\.groups .* above 0 for scaffold"):
        train(problem, SCAFFOLD(), tmp_path, rounds=1, groups={"weight": 0.0})


@pytest.mark.parametrize("head", [{"head": 2}, {"head_names": ("0",)}])
def test_fedpers_head_is_the_group_head(tmp_path, head):
    """Where the head's factor is 0 it stays, and everything else is trained; where the body's is, the other way."""
    local = Local(lr=LR, steps=3, groups={"head": 0.0})
    if head == {"head": 2}:  # all of this model: nothing is left to train
        local = Local(lr=LR, steps=3, groups={"head": 1.0, "body": 0.0})
        with pytest.raises(ConfigError, match=r'local\.groups has "body"'):
            runner(FedPer(**head), local, tmp_path)
        return
    run = runner(FedPer(**head), local, tmp_path)
    before = run.server["base"].clone()
    run.step()
    assert torch.equal(run.clients.store.get(np.arange(3))["head"], run.server["head0"].expand(3, -1))
    assert not torch.allclose(run.server["base"], before)


def test_a_pattern_that_fits_no_parameter_is_refused_with_the_names(tmp_path):
    with pytest.raises(ConfigError, match=r'local.groups has "0.wieght".*did you mean \'0.weight\'.*0.weight, 0.bias'):
        runner(Separate(), Local(groups={"0.wieght": 2.0}), tmp_path)
