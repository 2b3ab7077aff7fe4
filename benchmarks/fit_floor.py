"""How good can a choice look? What the two targets of `fit_quality.py` owe to chance, from results that exist.

    python benchmarks/fit_floor.py [papers/results/methods-small/runs.jsonl]

Nothing is trained: these are the runs of the study of all methods (docs/methods-study.md), 10 federations with three
seeds, methods tuned on validation data. Printed are

- how far the method that validation data chooses from the portfolio of `fit` is below the best of them by test data,
  and below the best by the test data of half of the clients, measured on the other half (200 halvings a block). The
  second has no luck in it;
- how many clients look worse off than alone with the method that validation data chooses, and with training alone
  itself at another learning rate that is as good in all (within half a point).
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from personafl.fitting.candidates import PORTFOLIO
from personafl.streams import generator

RUNS = Path(__file__).parents[1] / "papers/results/methods-small/runs.jsonl"


def share(right: np.ndarray, n: np.ndarray) -> float:
    return 100 * right.sum() / n.sum()


def by_halves(hits: np.ndarray, n: np.ndarray, chosen: int, draws: int = 200) -> float:
    """The advantage of the method that is best on one half of the clients over the chosen one, on the other half."""
    rng, found = generator(0, "halves"), []
    for _ in range(draws):
        half = rng.permutation(len(n)) < len(n) // 2
        for one, other in ((half, ~half), (~half, half)):
            best = int(hits[:, one].sum(1).argmax())
            found.append(share(hits[best, other], n[other]) - share(hits[chosen, other], n[other]))
    return float(np.mean(found))


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    runs = [run for run in map(json.loads, file.read_text().splitlines()) if run["status"] == "done"]
    blocks = defaultdict(list)
    for run in runs:
        if run["method"] in PORTFOLIO:
            blocks[run["federation"], run["seed"]].append(run)
    gaps, worse, floors = [], [], defaultdict(list)
    for (federation, seed), mine in sorted(blocks.items()):
        # The first seed has all tries; what was chosen from them is what the second seed was run with.
        settings = {run["method"]: run["settings"] for run in blocks[federation, 1]}
        final = [run for run in mine if settings.get(run["method"]) == run["settings"]]
        n, hits = np.array(final[0]["n_test"]), np.array([run["test"] for run in final])
        chosen = max(range(len(final)), key=lambda k: final[k]["val"][0])
        alone = hits[[run["method"] for run in final].index("separate")]
        best = max(share(row, n) for row in hits)
        gaps.append((best - share(hits[chosen], n), by_halves(hits, n, chosen)))
        worse.append(100 * np.mean(hits[chosen] < alone))
        if seed == 0:
            tries = [np.array(run["test"]) for run in mine if run["method"] == "separate"]
            for k, one in enumerate(tries):
                for other in tries[:k]:
                    if abs(share(one, n) - share(other, n)) < 0.5:
                        floors[federation] += [100 * np.mean(one < other), 100 * np.mean(one > other)]
    hindsight, halves = np.mean(gaps, 0)
    print(f"{len(gaps)} blocks. The best method by test data over the one by validation data: {hindsight:+.2f} points; "
          f"the best on another half of the clients over it: {halves:+.2f}")  # fmt: skip
    print(f"clients that look worse off than alone with the one by validation data: {np.mean(worse):.1f} %")
    for federation, shares in floors.items():
        print(f"alone at two rates, equally good in all, {federation}: {np.mean(shares):.1f} % look worse off")
    print(f"mean over these federations: {np.mean([np.mean(shares) for shares in floors.values()]):.1f} %")


if __name__ == "__main__":
    main()
