"""How wake-word detectors are trained and measured in the tables of Self-FL: the stages of a table, and its numbers.

A detector is trained on the pooled data of all device types until its accuracy on validation data does not rise any
more, and every method begins with it. One local step of FedAvg a round, weighted by samples, is SGD on the pooled data.
Then, with five clients, all active: FedAvg and Ditto with both weightings, first-order Per-FedAvg, Self-FL by
Algorithms 1 and 2; with four clients for each device type: Self-FL at client and at cluster level, C = 0.25 and 0.1.
η, Ditto's λ and Per-FedAvg's α are searched on validation data with the first seed, as many tries for each method
(`search.py`); sampled clients have the settings of Self-FL. False alarms are measured by `false_alarms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from personafl.config import parse
from personafl.federation import Federation
from personafl.metrics import mean_accuracy, standard_deviation
from personafl.runs.run import Run
from personafl.study.plan import Plan
from personafl_papers.data.devices import DEVICES, STATES
from personafl_papers.tables.claims import Number
from personafl_papers.tables.false_alarms import Model, Place, heard, operating_point, relative
from personafl_papers.tables.search import Axes, Axis, SearchPlan, geometric
from personafl_papers.tables.table import Found, Measured, Stage, number, planned, searching, with_settings

POOLED, FIVE, SAMPLED = "pooled model", "five clients", "sampled clients"
SEARCH, SEARCH_POOLED = "search five clients", "search pooled model"
POOLED_ROUNDS, ROUNDS, SAMPLED_ROUNDS = 6000, 15, 40
PLATEAU = {"eval_every": 100, "patience": 5}
"""The pooled model is done when five evaluations in a row did not better its validation accuracy."""
TRIES, MOST_TRIES = 6, 12
"""For each method and for the pooled model, and at most where a search has not come inside; fixed before the runs."""
MEAN, SPREAD, BEGINNING = "mean", "spread", "warm start"

METHODS: dict[str, dict[str, Any]] = {
    "selffl": {},
    "selffl-aug": {"algorithm": {"extra_steps": 40}},
    "fedavg-w": {"algorithm": {"name": "fedavg", "weights": "samples"}},
    "fedavg-e": {"algorithm": {"name": "fedavg", "weights": "equal"}},
    "ditto-w": {"algorithm": {"name": "ditto", "weights": "samples"}},
    "ditto-e": {"algorithm": {"name": "ditto", "weights": "equal"}},
    "perfedavg": {},
}
ROWS = {
    "selffl": "Self-FL", "selffl-aug": "Self-FL, Algorithm 2", "fedavg-w": "FedAvg-w", "fedavg-e": "FedAvg-e",
    "ditto-w": "Ditto-w", "ditto-e": "Ditto-e", "perfedavg": "Per-FedAvg",
}  # fmt: skip

_ACTIVITY = {"name": "selffl", "smoothing": "activity"}
VARIANTS: dict[str, dict[str, Any]] = {
    "selffl-client-0.25": {"algorithm": _ACTIVITY, "activity": 0.25},
    "selffl-cluster-0.25": {"algorithm": {**_ACTIVITY, "clusters": "group"}, "activity": 0.25},
    "selffl-client-0.1": {"algorithm": _ACTIVITY, "activity": 0.1},
}
CLIENT, CLUSTER, RARE = "Self-FL, client level, C = 0.25", "Self-FL, cluster level, C = 0.25", "Self-FL, C = 0.1"
VARIANT_ROWS = dict(zip(VARIANTS, (CLIENT, CLUSTER, RARE), strict=True))


def axes(rate: float) -> dict[str, Axes]:
    """By method, around a learning rate, which the kind of detector decides on."""
    coarse = geometric("local.lr", rate / 100, rate * 100, rate)
    fine = (geometric("local.lr", rate / 100, rate * 100, rate, per_decade=3),)
    ditto = (coarse, Axis("algorithm.lam", (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10), 1))
    perfedavg = (coarse, geometric("algorithm.alpha", 1e-4, 1.0, 0.01))
    own: dict[str, Axes] = {"ditto-w": ditto, "ditto-e": ditto, "perfedavg": perfedavg}
    return {method: own.get(method, fine) for method in METHODS}


def methods(quick: bool, of: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Methods; quick: few steps where Self-FL decides on their number."""
    few = {"algorithm.l_max": 4}
    out = {}
    for name, own in of.items():
        more = few | ({"algorithm.extra_steps": 2} if name == "selffl-aug" else {})
        out[name] = with_settings(own, more) if quick and name.startswith("selffl") else dict(own)
    return out


@dataclass(frozen=True)
class Study:
    """The study with one kind of detector.

    Attributes
    ----------
    config
        The tables of a config, without method, seed and first weights, from quick, clients of a device type, rounds.
    seeds, sampled_seeds
        How many, and how many of them for sampled clients.
    rate
        η at which the searches begin, which has to be 1 times a power of ten.
    """

    config: Callable[[bool, int, int], dict[str, Any]]
    seeds: int
    sampled_seeds: int
    rate: float

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (self.pooled_search, self.pooled, self.search, self.rest)

    def pooled_search(self, found: Found) -> Sequence[tuple[str, SearchPlan]]:
        pooled = {"pooled": axes(self.rate)["fedavg-w"]}
        plan = searching(self.pooled_config(found.quick), self._sgd({}), [found.seed], pooled, *_tries(found))
        return [(SEARCH_POOLED, plan)]

    def pooled(self, found: Found) -> Sequence[tuple[str, Plan]]:
        sgd = self._sgd(found.chosen(SEARCH_POOLED, "pooled"))
        return [(POOLED, planned(self.pooled_config(found.quick), sgd, found.seeds(self.seeds)))]

    def pooled_config(self, quick: bool) -> dict[str, Any]:
        tables = self.config(quick, 1, POOLED_ROUNDS)
        return tables if quick else {**tables, **PLATEAU}

    def _sgd(self, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {"pooled": with_settings({"algorithm": {"name": "fedavg"}, "local": {"steps": 1}}, settings)}

    def search(self, found: Found) -> Sequence[tuple[str, SearchPlan]]:
        """With the first seed; validation data is left aside in all runs with five clients."""
        tables, own = self.config(found.quick, 1, ROUNDS), methods(found.quick, METHODS)
        return [
            (SEARCH, searching(from_pooled(tables, run), own, [seed], axes(self.rate), *_tries(found)))
            for seed, run in beginnings(found).items()
            if seed == found.seed
        ]

    def rest(self, found: Found) -> Sequence[tuple[str, Plan]]:
        """All seeds, and the sampled clients, who have what was chosen for Self-FL."""
        own = methods(found.quick, METHODS)
        five = {name: with_settings(own[name], found.chosen(SEARCH, name)) for name in own}
        sampled = methods(found.quick, VARIANTS)
        variants = {name: with_settings(each, found.chosen(SEARCH, "selffl")) for name, each in sampled.items()}
        plans = []
        for seed, run in beginnings(found).items():
            plans.append((FIVE, planned(from_pooled(self.config(found.quick, 1, ROUNDS), run), five, [seed])))
            if seed in found.seeds(self.sampled_seeds):
                tables = from_pooled(self.config(found.quick, 4, SAMPLED_ROUNDS), run)
                plans.append((SAMPLED, planned(tables, variants, [seed])))
        return plans

    def measure(self, found: Found) -> Measured:
        base = beginnings(found)
        sampled_seeds = found.seeds(self.sampled_seeds)
        one = {seed: self.federation(found.quick, 1, seed) for seed in base}
        four = {seed: self.federation(found.quick, 4, seed) for seed in base if seed in sampled_seeds}
        points = {seed: operating_point(heard(run, one[seed], "global")) for seed, run in base.items()}

        def alarms(runs: Mapping[int, Run], of: Mapping[int, Federation], model: Model) -> list[dict[Place, float]]:
            return [relative(heard(run, of[seed], model), points[seed]) for seed, run in runs.items()]

        numbers: dict[str, dict[str, dict[str, Number]]] = {POOLED: rates(list(points.values()))}
        five, sampled = found.runs.get(FIVE, {}), found.runs.get(SAMPLED, {})
        tables: dict[str, dict[str, list[dict[Place, float]]]] = {
            "global": {row: alarms(five[m], one, "global") for m, row in ROWS.items() if five.get(m)},
            "personal": {row: alarms(five[m], one, "personal") for m, row in ROWS.items() if five.get(m)},
            SAMPLED: {row: alarms(sampled[m], four, "global") for m, row in VARIANT_ROWS.items() if sampled.get(m)},
        }
        for name, rows in tables.items():
            rows = {**rows, BEGINNING: [dict.fromkeys(point, 1.0) for point in points.values()]}
            for state in STATES:
                numbers[f"{name}, {state}"] = {row: by_device(values, state) for row, values in rows.items()}
        numbers[f"{SAMPLED}, all states"] = {
            row: {
                MEAN: number([mean_accuracy([*each.values()]) for each in values]),
                SPREAD: number([standard_deviation([*each.values()]) for each in values]),
            }
            for row, values in tables[SAMPLED].items()
        }
        return Measured(numbers)

    def federation(self, quick: bool, clients: int, seed: int) -> Federation:
        """The samples that were tested; their features are not needed."""
        tables = {key: value for key, value in self.config(quick, clients, ROUNDS).items() if key != "backbone"}
        return parse({**tables, "seed": seed}).federation()


def _tries(found: Found) -> tuple[int, int]:
    return (2, 0) if found.quick else (TRIES, MOST_TRIES)


def beginnings(found: Found) -> Mapping[int, Run]:
    """The pooled models by seed."""
    return found.runs.get(POOLED, {}).get("pooled", {})


def from_pooled(tables: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The same config, with the pooled model to begin with."""
    weights = str(run.path / "models" / "global.safetensors")
    return {**tables, "model": {**tables["model"], "weights": weights}}


def by_device(values: Sequence[Mapping[Place, float]], state: str) -> dict[str, Number]:
    """A state's relative FA for each device type that has it, and the mean of those that have a value."""
    places = [(device, state) for device in DEVICES if (device, state) in values[0]]
    out = {place[0]: number([each[place] for each in values]) for place in places}
    return {**out, MEAN: number([mean_accuracy([each[place] for place in places]) for each in values])}


def rates(points: Sequence[Mapping[Place, tuple[float, float]]]) -> dict[str, dict[str, Number]]:
    """The pooled model's false alarms and misses in percent."""
    out: dict[str, dict[str, Number]] = {}
    for which, what in enumerate(("false alarms", "misses")):
        for device, state in points[0]:
            found = number([point[device, state][which] for point in points], 100)
            out.setdefault(f"{state}: {what}", {})[device] = found
    return out
