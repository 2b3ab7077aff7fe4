"""Engines agree: same algorithm code, same seeds, same answer to float32 precision."""

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import ALGORITHMS, FedAvg
from personafl.algorithms.base import Sent
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.engines.stacked import StackedEngine
from personafl.engines.work import Work
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import measure, personal_models
from personafl.training.runner import Runner
from tests.archetypes import ARCHETYPES, FOR_TWO_LAYERS, SHORT_GRID, archetypes

MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)),
    "mlp with dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4)
    ),
    "cnn with group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(16, 4),
    ),
    "cnn with batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(27, 4),
    ),
    "cnn with batch norm per client": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    ),
}
SHORT = {
    "persfl": SHORT_GRID,
    "persfl-gd": SHORT_GRID,
    "selffl-aug": {"extra_steps": 12},
    "fedavg-ft": {"fine_tune_steps": 5},
    "fedprox-ft": {"fine_tune_steps": 5},
    "fedbabu": {"fine_tune_steps": 5},
}
"""Fewer steps where a client takes the same ones again and again."""
LONG = (*ARCHETYPES, "fedbn")
"""Trained for longer, on all engines and in chunks; of the others, `make test` has two rounds on loop and stacked."""


def model_for(algorithm: str) -> str:
    return "mlp" if algorithm in FOR_TWO_LAYERS else "cnn with batch norm"


def federation(clients: int = 7) -> Federation:
    """Clients from 3 to 40 samples, some smaller than a batch, some without validation or test data."""
    draw = np.random.default_rng(3)
    data = {}
    for m, size in enumerate([3, 40, 9, 17, 4, 26, 11][:clients]):
        x = draw.standard_normal((size, 1, 6, 6)).astype(np.float32)
        y = draw.integers(0, 4, size)
        cut = max(2, int(0.7 * size))
        data[f"c{m}"] = {"train": (x[:cut], y[:cut]), "val": (x[cut - 1 : cut + 1], y[cut - 1 : cut + 1])}
        if m != 4:
            data[f"c{m}"]["test"] = (x[cut:], y[cut:])
    return Federation.from_clients(data, classes=4)


def run(
    engine: str,
    algorithm: str,
    model: str,
    folder,
    local: Local,
    activity: float,
    memory: int = 1024,
    rounds: int = 3,
    **settings,
) -> Runner:
    torch.manual_seed(0)
    threads = 3 if engine == "threaded" else 1
    settings |= SHORT.get(algorithm, {})
    chosen = ALGORITHMS[algorithm](**settings)
    task = trained_task(chosen, Task(MODELS[model]()))
    made = ENGINES[engine](task, federation(), local, seed=5, memory=memory, threads=threads)
    if memory < 0:  # smaller than any client: one at a time
        made.memory = 0
    schedule = Schedule(rounds=10**6, activity=activity, eval_every=0, checkpoint_every=0)
    runner = Runner(chosen, LocalClients(made), schedule, RunFolder(folder), {})
    for _ in range(rounds):
        runner.step()
    return runner


def everything(runner: Runner) -> dict[str, np.ndarray]:
    """Server and client states, personalized models and measurements after some rounds."""
    out = {f"server {n}": v.numpy() for n, v in runner.server.items()}
    out |= {f"client {n}": v.numpy() for n, v in runner.clients.store.rows(np.arange(7)).items()}
    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    out["personal"] = torch.cat([part.theta for part in parts]).numpy()
    columns = measure(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    out |= {f"measured {n}": v for n, v in columns.items()}
    out |= {"steps": runner.steps, "active": runner.active, "gradients": runner.gradients}
    return out


def assert_agree(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        scale = max(np.abs(np.nan_to_num(value)).max(initial=0), 1e-3)
        np.testing.assert_allclose(value, two[name], rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in LONG])
def test_stacked_is_the_loop_for_every_algorithm(tmp_path, algorithm):
    """Epochs make the clients' numbers of steps differ; half of the clients are active, some of them twice."""
    local = Local(lr=0.05, batch_size=4, epochs=1)
    one, two = (
        everything(run(engine, algorithm, model_for(algorithm), tmp_path, local, activity=0.6, rounds=2))
        for engine in ("loop", "stacked")
    )
    assert_agree(one, two)


CHOICES = {
    "fedamp": {"attention": "scad", "starts": "random", "personalized": "u", "objective": True},
    "heurfedamp": {"starts": "random", "personalized": "u"},
    "persfl": {"direction": "reverse", "ties": "earlier", "report_grid": True},
    "persfl-gd": {"direction": "reverse", "ties": "earlier", "report_grid": True},
}
"""Settings other than the usual ones, where they change what a client computes, keeps or reports."""


@pytest.mark.parametrize("algorithm", CHOICES)
def test_engines_agree_on_choices_that_are_not_the_usual_ones(tmp_path, algorithm):
    local = Local(lr=0.05, batch_size=4, epochs=1)
    chosen = {"algorithm": algorithm, "model": model_for(algorithm), "activity": 0.6, "rounds": 2, **CHOICES[algorithm]}
    one = everything(run("loop", folder=tmp_path, local=local, **chosen))
    for engine, memory in (("stacked", 1024), ("stacked", -1), ("threaded", 1024)):
        assert_agree(one, everything(run(engine, folder=tmp_path, local=local, memory=memory, **chosen)))


@pytest.mark.parametrize("algorithm", archetypes(ALGORITHMS, besides=LONG))
def test_all_engines_agree_over_epochs_and_rounds(tmp_path, algorithm):
    local = Local(lr=0.05, batch_size=4, epochs=2)
    one = everything(run("loop", algorithm, model_for(algorithm), tmp_path, local, activity=0.6))
    for engine in ("stacked", "threaded"):
        assert_agree(one, everything(run(engine, algorithm, model_for(algorithm), tmp_path, local, activity=0.6)))


@pytest.mark.parametrize("algorithm", archetypes(ALGORITHMS, besides=LONG))
def test_chunks_do_not_change_the_answer(tmp_path, algorithm):
    local = Local(lr=0.05, batch_size=4, epochs=1)
    model = model_for(algorithm)
    whole = everything(run("stacked", algorithm, model, tmp_path, local, activity=1.0, rounds=2))
    parts = everything(run("stacked", algorithm, model, tmp_path, local, activity=1.0, memory=-1, rounds=2))
    assert_agree(whole, parts)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox-ft"])
def test_engines_agree_for_every_model(tmp_path, algorithm, model):
    local = Local(lr=0.05, batch_size=4, epochs=1, momentum=0.5, weight_decay=0.01)
    one = everything(run("loop", algorithm, model, tmp_path, local, activity=1.0, rounds=2))
    for engine in ("stacked", "threaded"):
        assert_agree(one, everything(run(engine, algorithm, model, tmp_path, local, activity=1.0, rounds=2)))


def test_full_batches_of_different_sizes_agree(tmp_path):
    local = Local(lr=0.05, batch_size=0, steps=3)
    one = everything(run("loop", "fedavg", "mlp with dropout", tmp_path, local, activity=1.0))
    assert_agree(one, everything(run("stacked", "fedavg", "mlp with dropout", tmp_path, local, activity=1.0)))


@pytest.mark.parametrize("algorithm", ["separate", "selffl", "persfl"])
def test_engines_agree_on_batches_that_are_a_share_of_a_clients_samples(tmp_path, algorithm):
    local = Local(lr=0.02, batch_size=3, batch_share=0.3, epochs=2)
    loop, *others = (
        everything(run(engine, algorithm, "mlp with dropout", tmp_path, local, 0.6, rounds=4)) for engine in ENGINES
    )
    for other in others:
        assert_agree(loop, other)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_share_of_a_clients_samples_is_as_the_batch_size_that_it_comes_to(tmp_path, engine):
    """Clients of 2 to 28 training samples, of which half is 1 to 14."""
    sizes = federation().sizes("train")
    share = Local(lr=0.05, batch_size=2, batch_share=0.5, epochs=1)
    own = share.batch_sizes(sizes)
    assert own.tolist() == [max(2, -(-size // 2)) for size in sizes.tolist()]
    made = everything(run(engine, "separate", "mlp with dropout", tmp_path, share, 1.0))
    assert made["steps"].tolist() == [1, 2, 2, 2, 1, 2, 2], "of 2, 28, 6, 11, 2, 18 and 7 samples"
    for size in {*own.tolist()}:
        same = Local(lr=0.05, batch_size=size, epochs=1)
        plain = everything(run(engine, "separate", "mlp with dropout", tmp_path, same, 1.0))
        rows = own == size
        np.testing.assert_allclose(made["client theta"][rows], plain["client theta"][rows], rtol=1e-5, atol=1e-6)


def test_algorithms_see_each_clients_batch_size(tmp_path):
    engine = run(
        "loop", "fedavg", "linear", tmp_path, Local(batch_size=2, batch_share=0.5), 1.0, rounds=0
    ).clients.engine
    work = Work(FedAvg(), 1, "train", np.arange(7), {}, Sent({}))
    assert engine._info(work)["batch_size"].tolist() == [2, 14, 3, 6, 2, 9, 4]


def test_dropout_differs_between_clients(tmp_path):
    """Two clients with the same data and no dropout would train alike."""
    x, y = np.random.default_rng(0).standard_normal((8, 36)).astype(np.float32), np.arange(8) % 4
    fed = Federation.from_clients({"a": {"train": (x, y)}, "b": {"train": (x, y)}})
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(36, 16), nn.Dropout(0.5), nn.Linear(16, 4)))
    engine = StackedEngine(task, fed, Local(batch_size=0, steps=1), seed=0)
    runner = Runner(
        ALGORITHMS["separate"](), LocalClients(engine), Schedule(rounds=9, eval_every=0), RunFolder(tmp_path), {}
    )
    runner.step()
    theta = runner.clients.store.get(np.arange(2))["theta"]
    assert not torch.equal(theta[0], theta[1])


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])  # all steps at once, and one by one
def test_no_step_is_spent_on_a_client_that_has_finished(tmp_path, name):
    """Gradients are computed for as many rows as clients still have steps to go."""
    local = Local(lr=0.05, batch_size=4, epochs=1)
    rows: list[int] = []
    torch.manual_seed(0)
    task = Task(MODELS["mlp"]())
    engine = StackedEngine(task, federation(), local, seed=5)
    original, at_once = task._gradients, task._mlp.descend
    task._gradients = lambda params, batch, *rest: (  # type: ignore[method-assign]
        rows.append(len(batch.x)) or original(params, batch, *rest)
    )
    task._mlp.descend = lambda params, x, *rest: rows.append(len(x)) or at_once(params, x, *rest)
    runner = Runner(ALGORITHMS[name](), LocalClients(engine), Schedule(rounds=9, eval_every=0), RunFolder(tmp_path), {})
    runner.step()
    assert sum(rows) == runner.steps.sum()
    assert len(rows) == runner.steps.max()


def test_the_public_way_out_of_vmap_gives_the_same(tmp_path, monkeypatch):
    from personafl.engines import vmap

    assert vmap.FAST, "this torch lacks the primitives of the fast path"
    local = Local(lr=0.05, batch_size=4, epochs=2)
    fast = everything(run("stacked", "fedprox", "cnn with group norm", tmp_path, local, activity=1.0))
    monkeypatch.setattr(vmap, "FAST", False)
    slow = everything(run("stacked", "fedprox", "cnn with group norm", tmp_path, local, activity=1.0))
    for name, value in fast.items():
        np.testing.assert_array_equal(value, slow[name], err_msg=name)
