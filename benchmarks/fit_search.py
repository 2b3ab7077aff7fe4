"""Which search finds better candidates in the same time: that of `personafl fit`, or Optuna?

    pip install optuna
    PERSONAFL_DATA=… python benchmarks/fit_search.py OUT [--seconds 20] [--seeds 20,21,22] [--only heart,school]

Methods, settings and lengths of training are the same for both, and both begin with every method as it is given.
`halving` is `fitting/search.py`. `optuna` is its tree-structured Parzen estimator (multivariate, a group for each
method) with its successive-halving pruner at the same lengths; what it prunes is over, as it has no way to go on with
it. The time is that of one processor thread.

What is compared: the best score on validation data, which is what a search is for, and what the model that has it is
worth on test data. Results are lines of OUT/searches.jsonl; what is there is not done again. Prints a Markdown table.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import optuna
from fit_quality import NAMES, job_of, searched, test_of
from fit_quality_tables import signed

from personafl.algorithms.search_spaces import Range
from personafl.fitting import budget as budgets
from personafl.fitting.candidates import PORTFOLIO, Candidate, Portfolio
from personafl.fitting.search import FACTOR, Attempt, Search, rungs
from personafl.fitting.training import Trainer
from personafl.metrics.permutation import sign_flip


def settings_of(trial: optuna.Trial, method: str, portfolio: Portfolio) -> dict:
    """What Optuna wants of a method, with the names of `Portfolio.draw`."""
    found = {}
    for key, space in portfolio.spaces[method].items():
        name = f"{method} {key}"
        if isinstance(space, Range):
            found[key] = trial.suggest_float(name, space.low, space.high, log=True)
        else:
            found[key] = trial.suggest_categorical(name, space.values)
    return found


def by_optuna(trainer: Trainer, seconds: float, seed: int) -> Candidate:
    portfolio, clock, candidates = trainer.portfolio, budgets.Clock(seconds), []
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
    )
    for method in PORTFOLIO:
        given = {
            f"{method} {key}": portfolio._usual(method, key, trainer.job.local) for key in portfolio.spaces[method]
        }
        study.enqueue_trial({"method": method, **given})
    while clock.left > 0:
        trial = study.ask()
        method = trial.suggest_categorical("method", PORTFOLIO)
        candidate = Candidate(len(candidates), method, settings_of(trial, method, portfolio))
        candidates.append(candidate)
        state = optuna.trial.TrialState.COMPLETE
        for place, rounds in enumerate(rungs(trainer.job.schedule.rounds)):
            outcome = trainer.train(Attempt(candidate, rounds), budgets.now() + clock.left)
            if outcome is None or outcome.why:
                state = optuna.trial.TrialState.FAIL
                break
            candidate.outcomes[rounds] = outcome
            trial.report(outcome.best, FACTOR**place)
            if trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        study.tell(trial, candidate.score if state == optuna.trial.TrialState.COMPLETE else None, state)
    return max(candidates, key=lambda c: c.score)


def by_halving(trainer: Trainer, seconds: float, seed: int) -> Candidate:
    return searched(trainer, Search(trainer.portfolio, trainer.job.local, trainer.job.schedule.rounds, seed), seconds)


WAYS = {"halving": by_halving, "optuna": by_optuna}


def table(lines: list[dict]) -> str:
    """Means over seeds, and the differences to halving over all blocks."""
    known = {(line["federation"], line["seed"]): line for line in lines}
    said = ["| federation | " + " | ".join(f"{way}, validation | test" for way in WAYS) + " |", "|---|" + "--:|" * 4]
    for name in dict.fromkeys(line["federation"] for line in lines):
        mine = [line for line in lines if line["federation"] == name]
        cells = [np.mean([line[way][key] for line in mine]) for way in WAYS for key in ("val", "test")]
        said.append(f"| {name} | " + " | ".join(f"{abs(cell):.2f}" for cell in cells) + " |")
    shares = [line for line in known.values() if line["share"]]
    for key in ("val", "test"):
        gains = np.array([line["halving"][key] - line["optuna"][key] for line in shares])
        said += [
            "",
            f"halving over optuna, {key}, {len(gains)} blocks with an accuracy: {gains.mean():+.2f} points, better in "
            f"{(gains > 0).sum()}, worse in {(gains < 0).sum()} (p better {sign_flip(gains):.3f}, worse "
            f"{sign_flip(-gains):.3f})",
        ]
    return "\n".join(said)


def block(name: str, seed: int, seconds: float) -> dict:
    job, found = job_of(name, seed), {"federation": name, "seed": seed, "seconds": seconds}
    for way, search in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(job, Path(folder), Portfolio(None, job.local))
            best = search(trainer, seconds, seed)
            told = test_of(trainer, best)
            found["share"] = told["measure"] == "accuracy"
            found[way] = {"val": told["val"] * (100 if found["share"] else 1), "test": signed(told),
                          "best": best.described(), "candidates": len(list(Path(folder).iterdir()))}  # fmt: skip
    return found


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("out", type=Path)
    ask.add_argument("--seconds", type=float, default=20)
    ask.add_argument("--seeds", default="20,21,22")
    ask.add_argument("--only", default=",".join(NAMES))
    asked = ask.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    budgets.now = time.process_time
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "searches.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(line["federation"], line["seed"]) for line in lines}
    for seed in map(int, asked.seeds.split(",")):
        for name in asked.only.split(","):
            if (name, seed) not in done:
                lines.append(block(name, seed, asked.seconds))
                with file.open("a") as out:
                    out.write(json.dumps(lines[-1]) + "\n")
                print(name, seed, *(f"{way} {lines[-1][way]['val']:.2f}" for way in WAYS), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
