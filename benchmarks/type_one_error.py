"""How often a comparison names a winner though there is none, and how often it finds one that is there.

    python benchmarks/type_one_error.py [--federations 1000] [--large 200] [--only alike]

The tables of docs/significance.md. Federations are drawn, not trained: test sets have power-law sizes, clients
are easy or hard, a method suits a client more or less well, with every seed a bit differently, and answers are right
or wrong by chance. All of that is drawn alike for every method, so methods are exchangeable: any winner is wrong. The
whole judgement decides (`study.judged`: the winner and both votes), with 2 to 6 models and 1 to 3 seeds.

- alike: all methods are exchangeable, training alone and FedAvg among them.
- references worse: training alone and FedAvg's global model are worse for everybody, the others exchangeable.
- 3 points, 10 points: one method is better for everybody, by about so much; a winner is right if it is that one.
- two alike: two models and one seed, where the corrections cost least.
- trainings vary: as alike, but each training turns out better or worse for all its clients at once, by about a point
  (one standard deviation). A test over clients cannot see that with one seed: docs/significance.md says so.
"""

import argparse
from typing import Any

import numpy as np
from scipy import stats

from personafl import metrics
from personafl.study.differences import Floats, Outcome, Outcomes, Row
from personafl.study.judgement import Judgement, columns_of, judged

SCENARIOS: dict[str, dict[str, Any]] = {
    "alike": {},
    "references worse": {"worse": 0.6},
    "3 points": {"better": 0.15},
    "10 points": {"better": 0.55},
    "two alike": {"methods": 0, "seeds": 1},
    "trainings vary, 1 seed": {"training": 0.07, "seeds": 1},
    "trainings vary, 3 seeds": {"training": 0.07, "seeds": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=1000, help="of 4 and of 40 clients, for each scenario")
    parser.add_argument("--large", type=int, default=200, help="of 1,000 clients")
    parser.add_argument("--only", choices=SCENARIOS, help="one of the scenarios")
    asked = parser.parse_args()
    for scenario, settings in SCENARIOS.items():
        if asked.only not in (None, scenario):
            continue
        for clients in (4, 40, 1000):
            count = asked.large if clients == 1000 else asked.federations
            draw = np.random.default_rng([clients, list(SCENARIOS).index(scenario)])
            found = [named(judged(*federation(draw, clients, **settings))) for _ in range(count)]
            right = {"method-0"} if "better" in settings else set()
            if right:
                print(f"{scenario}, {clients} clients: right winner {share([names == right for names in found])}")
            print(
                f"{scenario}, {clients} clients: wrong winner {share([bool(names - right) for names in found])}",
                flush=True,
            )


def federation(
    draw: np.random.Generator, clients: int, worse: float = 0.0, better: float = 0.0, training: float = 0.0,
    methods: int | None = None, seeds: int | None = None,
) -> tuple[list[Row], Outcomes]:  # fmt: skip
    """Outcomes of exchangeable methods and of the two references; logits are shifted by what is asked for."""
    least = 2 if worse else 1 if better else 0  # of two methods that are better than the references none is the best
    methods = int(draw.integers(least, 5)) if methods is None else methods
    seeds = int(draw.integers(1, 4)) if seeds is None else seeds
    names = ["separate", "fedavg (global)", *(f"method-{k}" for k in range(methods))]
    rows = [Row("separate"), Row("fedavg", "global"), *(Row(name) for name in names[2:])]
    size = np.minimum(500, np.floor(5 * draw.pareto(1.5, clients) + 5))
    ability = draw.normal(1.0, 1.0, clients) + draw.normal(0, 0.25, (len(names), clients))
    ability[:2] -= worse
    ability[2:3] += better
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in names}
    for seed in range(seeds):
        now = ability + draw.normal(0, 0.1, ability.shape) + draw.normal(0, training, (len(names), 1))
        correct = draw.binomial(size.astype(np.int64), 1 / (1 + np.exp(-now))).astype(np.float64)
        alone, common = (metrics.accuracies(correct[k], size) for k in (0, 1))
        for k, name in enumerate(names):
            outcomes[name][seed] = _outcome(correct[k], size, alone, common, reference=k < 2)
    return rows, outcomes


def named(judgement: Judgement) -> set[str]:
    """Everybody who is called a winner of anything."""
    found = {*judgement.performance.winners, *judgement.fairness.winners}
    return found | ({judgement.winner} if judgement.winner else set())


def share(found: list[bool]) -> str:
    """A percentage with its 95% Clopper–Pearson interval."""
    interval = stats.binomtest(sum(found), len(found)).proportion_ci(method="exact")
    return f"{np.mean(found):.1%} ({interval.low:.1%} to {interval.high:.1%} of {len(found)})"


def _outcome(correct: Floats, size: Floats, alone: Floats, common: Floats, reference: bool) -> Outcome:
    clients = [f"client-{m}" for m in range(len(size))]
    if reference:
        return Outcome(clients, size, correct, "", columns_of(correct, size, size))
    qoi = metrics.quantum_of_improvement(metrics.accuracies(correct, size), common, alone)
    return Outcome(clients, size, correct, "", columns_of(correct, size, size, alone, common), qoi)


if __name__ == "__main__":
    main()
