"""How good `personafl fit` is: against single methods, as given and tuned, and against random search.

    PERSONAFL_DATA=… python benchmarks/fit_quality.py OUT [--budgets 30,120] [--seeds 10,11,12] [--tuned 3] [--random]
        [--only mnist-practical,school]

Federations: those of the study of all methods (docs/methods-study.md, size small) with seeds that the study did not
have, MNIST by a power law, and two regressions. The portfolio of `fit` was chosen by the results of that study, on
other draws of ten of these federations; the other three had no part in it.

Every way gets the same budget, in seconds of one processor thread, so that a machine that does other work as well
gives the same answer: `fit`; the methods that are best on validation data as they are (`--tuned`: how many), each
searched for the whole budget by the same successive halving; with `--random`, random search over the same methods and
settings, all rounds. Training alone is as `fit` tunes it. Every method as given is trained once for all budgets. All
choices are made on validation data. What is then compared on test data says `fit_quality_tables.py`.

Results are lines of OUT/results.jsonl; what is there is not done again. OUT/outputs has what the finalists of each fit
say of every sample. Prints Markdown tables.
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from fit_quality_tables import by_validation, tables

from personafl.algorithms import Separate
from personafl.config import parse
from personafl.data.readers import find
from personafl.engines import make_engine
from personafl.engines.measuring import measure_outputs
from personafl.federation import Federation
from personafl.fitting import budget as budgets
from personafl.fitting.candidates import PORTFOLIO, Candidate, Portfolio
from personafl.fitting.finalists import labels, outputs_of, owners, theta_of
from personafl.fitting.fit import fit_job
from personafl.fitting.mixture import mixed_outputs
from personafl.fitting.result import Fit
from personafl.fitting.search import Attempt, Search
from personafl.fitting.training import Trainer
from personafl.inputs import shape_of
from personafl.jobs import config_job, module_tables
from personafl.kernels.task import Task
from personafl.models import MLP, initialize
from personafl.settings import EngineSettings, Local, Schedule
from personafl.streams import generator
from personafl.tasks import task_for
from personafl.training.job import Job
from personafl_papers.methods.federations import FEDERATIONS
from personafl_papers.methods.sizes import SIZES

SIZE = SIZES["small"]
ENGINE = EngineSettings(name="stacked", threads=1)
POWER_LAW = {
    "data": {"name": "mnist", "normalize": "fedprox"}, "partition": {"name": "powerlaw", "clients": 200},
    "splits": [0.6, 0.2, 0.2], "model": {"name": "mclr"}, "activity": 0.2, "rounds": 40,
    "local": {"lr": 0.03, "batch_size": 10, "steps": 20}, "engine": {"name": "stacked", "threads": 1},
}  # fmt: skip


VOICE = ["Jitter(%)", "Jitter(Abs)", "Shimmer", "Shimmer(dB)", "NHR", "HNR", "RPDE", "DFA", "PPE", "age", "sex"]


def parkinson(seed: int) -> Federation:
    """Scores of 42 patients from recordings of their voice."""
    return Federation.from_table(
        find("parkinsons_updrs.csv.gz"), client="subject#", label="total_UPDRS", features=VOICE, label_type="numbers",
        splits=(0.2, 0.2, 0.6), seed=seed, normalize="standard",
    )  # fmt: skip


def school(seed: int) -> Federation:
    """Exam scores in 139 schools."""
    with np.load(find("school.npz")) as file:
        x, y, owner = (np.asarray(file[name]) for name in ("x", "y", "school"))
    y = (y - y.mean()) / y.std()
    return Federation.from_arrays(x.astype(np.float32), y.astype(np.float32), clients=owner, splits=(0.4, 0.2, 0.4),
                                  seed=seed)  # fmt: skip


REGRESSIONS = {"parkinson": parkinson, "school": school}
NAMES = (*FEDERATIONS, "mnist-power-law", *REGRESSIONS)


def job_of(name: str, seed: int, other: int = 0) -> Job:
    """The federation with its model, and how clients train where nothing is searched.

    `other` is for other initial weights and other batches on the same data.
    """
    if name == "mnist-power-law":
        config = parse({**POWER_LAW, "seed": seed})
        return config_job(replace(config, seed=seed + other), config.federation())
    if name in REGRESSIONS:
        federation, model = REGRESSIONS[name](seed), MLP(hidden=(32,))
    else:
        federation, model = FEDERATIONS[name].make(SIZE, seed), FEDERATIONS[name].model(SIZE)
    kind = task_for(federation.y, lambda: federation.y)
    outputs = kind.outputs(federation.y, federation.classes)
    built = initialize(model, shape_of(federation.x), outputs, seed + other, federation.constants)
    local = Local(lr=0.1 if name not in REGRESSIONS else 0.03, steps=SIZE.steps, batch_size=SIZE.batch_size)
    schedule = Schedule(rounds=SIZE.rounds)
    return Job(federation, Task(built, kind), Separate(), schedule, local, ENGINE, seed=seed + other,
               tables=module_tables(federation, built))  # fmt: skip


# --- the rivals -------------------------------------------------------------------------------------------------------


def test_of(trainer: Trainer, candidate: Candidate) -> dict:
    """What the models of a candidate are worth on test data: those that were best on validation data."""
    known = [o for o in candidate.outcomes.values() if not o.why]
    outcome = max(known, key=lambda o: o.best)
    who = "personal" if not outcome.global_score > outcome.score else "global"
    return {**measured(trainer.run_of(candidate, outcome), who), "val": outcome.best, "method": candidate.method,
            "settings": candidate.settings, "rounds": outcome.rounds, "who": who}  # fmt: skip


def measured(run, who: str) -> dict:
    """The pooled measure, and each client's."""
    table, measure = run.clients(), run.primary
    n = np.asarray(table.column("n_test").to_numpy(), float)
    values = np.asarray(table.column(f"{who}_{measure.name}").to_numpy(zero_copy_only=False), float)
    found = {"test": measure.pooled(values, n), "clients": [None if v != v else round(v, 6) for v in values],
             "n": n.astype(int).tolist(), "better": measure.better, "measure": measure.name}  # fmt: skip
    said = run.folder.predictions() if measure.name == "accuracy" else None
    if said is not None:  # sample after sample, client after client
        right = said.column("label").to_numpy() == said.column(f"{who}_class").to_numpy()
        found["hits"] = "".join("01"[int(hit)] for hit in right)
    return found


def as_given(trainer: Trainer, methods: Sequence[str] = PORTFOLIO) -> dict[str, dict]:
    """Every method once, with the settings that it has, all rounds."""
    found = {}
    for number, method in enumerate(methods):
        candidate = Candidate(number, method, {})
        outcome = trainer.train(Attempt(candidate, trainer.job.schedule.rounds), 1e6)
        if outcome is not None and not outcome.why:
            candidate.outcomes[outcome.rounds] = outcome
            found[method] = test_of(trainer, candidate)
    return found


def alone_again(job: Job, folder: Path) -> dict:
    """Training alone as given, with other initial weights and other batches: no better and no worse than alone."""
    return as_given(Trainer(job, folder, Portfolio(None, job.local)), ["separate"])["separate"]


def outputs_by(fitted: Fit, job: Job, split: str, key: str) -> torch.Tensor:
    """What the finalists say of every sample (F, N, …): as they are used (`folder`), or as they were `searched`."""
    summary = fitted.summary
    fitted.summary = {**summary, "finalists": [{**model, "folder": model[key]} for model in summary["finalists"]]}
    engine, outputs = make_engine(ENGINE, job.task, job.federation, job.local, job.seed)[0], []
    for place, model in enumerate(summary["finalists"]):
        run, theirs = fitted.finalist(place), engine
        if run.task is not job.task:
            theirs = make_engine(ENGINE, run.task, job.federation, job.local, job.seed)[0]
        outputs.append(outputs_of(theirs, theta_of(run, model["who"], job.federation.ids), split))
    fitted.summary = summary
    return torch.stack(outputs)


def before_refit(fitted: Fit, job: Job) -> dict:
    """What the models of the search would have been worth with the weights that were chosen: no last training."""
    engine, _ = make_engine(ENGINE, job.task, job.federation, job.local, job.seed)
    outputs = outputs_by(fitted, job, "test", "searched")
    mixed = mixed_outputs(job.task.kind, outputs, fitted.weights[owners(engine, "test")])
    n, measure = job.federation.sizes("test"), job.task.kind.primary
    columns = measure_outputs(engine, mixed, labels(engine, "test"), n)
    values = columns["correct"] / np.maximum(n, 1) if measure.name == "accuracy" else columns[measure.name]
    values = np.where(n > 0, values, np.nan)
    return {"test": measure.pooled(values, n.astype(float)), "n": n.tolist(), "better": measure.better,
            "clients": [None if v != v else round(v, 6) for v in values], "measure": measure.name}  # fmt: skip


def keep_outputs(fitted: Fit, job: Job, file: Path) -> None:
    """What every finalist says of every sample, for trying other ways to choose: nothing has to be trained for them."""
    engine, _ = make_engine(ENGINE, job.task, job.federation, job.local, job.seed)
    kept = {"weights": fitted.weights, "labels": [model["label"] for model in fitted.summary["finalists"]]}
    for split in ("val", "test"):
        kept |= {f"{split}_owner": owners(engine, split), f"{split}_y": labels(engine, split).numpy()}
        kept[f"{split}_searched"] = outputs_by(fitted, job, split, "searched").numpy()
    if fitted.summary["refit"]:
        kept["test_used"] = outputs_by(fitted, job, "test", "folder").numpy()
        for place, model in enumerate(fitted.summary["finalists"]):
            mine = np.isin(kept["test_owner"], [job.federation.ids.index(client) for client in model["kept"]])
            kept["test_used"][place, mine] = kept["test_searched"][place, mine]
    file.parent.mkdir(exist_ok=True)
    np.savez_compressed(file, **kept)


def trained_again(trainer: Trainer, single: dict) -> dict:
    """A single method as it was chosen, trained once more with the validation data, as a fit does it."""
    candidate = Candidate(0, single["method"], single["settings"])
    outcome = trainer.train(Attempt(candidate, single["rounds"], again=True), budgets.now() + 1e6)
    return measured(trainer.run_of(candidate, outcome), single["who"])


def alone_within(fitted: Fit) -> dict:
    """Training alone as the search of a fit tuned it."""
    models = fitted.summary["finalists"]
    place = next(f for f, model in enumerate(models) if model["label"] == "alone")
    return {**measured(fitted.finalist(place), "personal"), "val": models[place]["score"]}


def searched(trainer: Trainer, search: Search, seconds: float) -> Candidate:
    """The best candidate of a search of so many seconds."""
    clock = budgets.Clock(seconds)
    while (attempt := search.next(clock.left)) is not None and clock.left > 0:
        outcome = trainer.train(attempt, budgets.now() + clock.left)
        if outcome is None:
            break
        search.tell(attempt.candidate, outcome)
        if len(search.candidates) % 25 == 0:
            trainer.remove(search.forget())
    return search.leader


def tuned(trainer: Trainer, method: str, seconds: float, seed: int) -> Candidate:
    """One method, searched for all of the budget."""
    portfolio = Portfolio([method], trainer.job.local)
    portfolio.algorithms = {method: portfolio.algorithms[method]}
    search = Search(portfolio, trainer.job.local, trainer.job.schedule.rounds, seed)
    return searched(Trainer(trainer.job, trainer.folder, portfolio), search, seconds)


def at_random(trainer: Trainer, seconds: float, seed: int) -> Candidate:
    """Methods and settings drawn evenly, each trained for all rounds."""
    clock, candidates = budgets.Clock(seconds), []
    while clock.left > 0:
        rng = generator(seed, "random search", len(candidates))
        method = str(rng.choice(PORTFOLIO))
        settings = trainer.portfolio.draw(method, None, trainer.job.local, rng)
        candidate = Candidate(len(candidates), method, settings)
        candidates.append(candidate)
        outcome = trainer.train(Attempt(candidate, trainer.job.schedule.rounds), budgets.now() + clock.left)
        if outcome is None:
            break
        candidate.outcomes[outcome.rounds] = outcome
    usable = [c for c in candidates if c.outcomes and not c.failed]
    return max(usable, key=lambda c: c.score)


# --- one block --------------------------------------------------------------------------------------------------------


def block(name: str, seed: int, seconds: float, many: int, chance: bool, folder: Path, known: dict, kept: Path) -> dict:
    """Everything for one federation, seed and budget; `known` is what needs no budget, from before."""
    job = job_of(name, seed)
    portfolio = Portfolio(None, job.local)

    def trainer(kind: str) -> Trainer:
        return Trainer(replace(job), folder / kind, portfolio)

    found = {"federation": name, "seed": seed, "budget": seconds, **known}
    if not known:
        found["given"] = as_given(trainer("given"))
        found["alone again"] = alone_again(job_of(name, seed, other=1000), folder / "again")
    given = found["given"]
    to_tune = sorted(given, key=lambda method: -given[method]["val"])[:many]
    begun = time.process_time()
    fitted = fit_job(job, folder / "fit", seconds, progress=False)
    found["fit_seconds"] = round(time.process_time() - begun, 1)
    found["fit"] = measured(fitted, "personal")
    found["refit"] = fitted.summary["refit"]
    if fitted.summary["refit"]:
        found["fit before"] = before_refit(fitted, job)
    keep_outputs(fitted, job, kept / f"{name}-{seed}-{seconds:g}.npz")
    found["way"], found["trials"] = fitted.summary["way"], len(fitted.summary["trials"])
    found["alone"] = alone_within(fitted)
    if chance:
        searching = trainer("random")
        found["random"] = test_of(searching, at_random(searching, seconds, seed))
    found["tuned"] = {}
    for method in to_tune:
        searching = trainer(f"tuned-{method}")
        found["tuned"][method] = test_of(searching, tuned(searching, method, seconds, seed))
    found["single again"] = trained_again(trainer("single"), by_validation(found))
    return found


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("out", type=Path)
    ask.add_argument("--budgets", default="30")
    ask.add_argument("--seeds", default="10,11,12")
    ask.add_argument("--tuned", type=int, default=3)
    ask.add_argument("--random", action="store_true", help="random search as well")
    ask.add_argument("--only", default=",".join(NAMES))
    asked = ask.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    budgets.now = time.process_time
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(line["federation"], line["seed"], line["budget"]) for line in lines}
    memory = Path("/dev/shm")
    for seconds in map(float, asked.budgets.split(",")):
        for seed in map(int, asked.seeds.split(",")):
            for name in asked.only.split(","):
                if (name, seed, seconds) in done:
                    continue
                known = next((line for line in lines if (line["federation"], line["seed"]) == (name, seed)), {})
                known = {key: known[key] for key in ("given", "alone again") if known}
                with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
                    line = block(
                        name, seed, seconds, asked.tuned, asked.random, Path(folder), known, asked.out / "outputs"
                    )
                with file.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                lines.append(line)
                print(name, seed, seconds, f"fit {line['fit']['test']:.4f}", line["fit_seconds"], flush=True)
    print(tables([json.loads(line) for line in file.read_text().splitlines()]))


if __name__ == "__main__":
    main()
