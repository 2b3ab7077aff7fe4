"""Whether it helps that clients do not choose by themselves alone: other ways to choose among the same models.

    python benchmarks/fit_choice.py OUT

OUT is that of `fit_quality.py`, whose fits kept what each finalist says of every validation and test sample; nothing is
trained. All ways have the models of the search, which have not seen the validation data, and choose on that data. Test
accuracy in % (or the error), and the share of clients that look worse off than with training alone. Prints Markdown.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from personafl.fitting.choice import Way, pruned, weights_of
from personafl.fitting.mixture import mixed_outputs
from personafl.tasks import task_for

CHOSEN = "as `fit` chose"
MIXTURES = {"one mixture for all": np.inf, "a mixture for each, α = 10": 10.0, "α = 1": 1.0, "α = 0.01": 0.01}


def values(kind, outputs: torch.Tensor, y: torch.Tensor, owner: np.ndarray, clients: int) -> np.ndarray:
    """What each client gets, more is better; NaN without samples."""
    hits = (
        (outputs.argmax(1) == y).double() if outputs.dim() > 1 and outputs.shape[1] > 1 else -kind.objective(outputs, y)
    )
    n = np.bincount(owner, minlength=clients)
    sums = np.bincount(owner, np.asarray(hits, float), clients)
    return np.where(n > 0, sums / np.maximum(n, 1), np.nan)


def weights_by_way(likelihood: np.ndarray, right: np.ndarray, owner: np.ndarray, clients: int) -> dict[str, np.ndarray]:
    """The weights (K, F) of every way, from validation samples alone."""
    models = likelihood.shape[1]
    own = np.stack([np.bincount(owner, right[:, f], clients) for f in range(models)], 1)
    everybody = own.sum(0)
    found = {
        "the best for all": weights_of(Way("single", int(everybody.argmax())), likelihood, owner, clients),
        "each the best on its own": np.eye(models)[np.lexsort((np.tile(everybody, (clients, 1)), own))[:, -1]],
        "each its most probable, with a prior": weights_of(Way("one each"), likelihood, owner, clients),
    }
    for name, alpha in MIXTURES.items():
        found[name] = pruned(weights_of(Way("mixture", alpha=alpha), likelihood, owner, clients))
    return found


def compared(file: Path) -> tuple[dict[str, tuple[float, float]], bool]:
    """Of each way the pooled value on test data, and the share of clients that look worse off than alone.

    And whether the value is an accuracy.
    """
    with np.load(file) as kept:
        data = {name: kept[name] for name in kept.files}
    labels, clients = data["labels"].tolist(), len(data["weights"])
    y, owner = torch.from_numpy(data["val_y"]), data["val_owner"]
    kind = task_for(y, lambda: y)
    outputs = torch.from_numpy(data["val_searched"])
    losses = np.stack([kind.objective(each, y).double().numpy() for each in outputs], 1)
    classes = outputs.dim() > 2 and outputs.shape[2] > 1
    likelihood = -losses if classes else -losses / (2 * losses.mean(0).min())
    right = np.stack([(each.argmax(1) == y).double().numpy() for each in outputs], 1) if classes else -losses
    ways = {**weights_by_way(likelihood, right, owner, clients), CHOSEN: data["weights"]}
    test, test_y, test_owner = (
        torch.from_numpy(data["test_searched"]),
        torch.from_numpy(data["test_y"]),
        data["test_owner"],
    )
    alone = values(kind, test[labels.index("alone")], test_y, test_owner, clients)
    n, found = np.bincount(test_owner, minlength=clients), {}
    for name, weights in ways.items():
        mine = values(kind, mixed_outputs(kind, test, weights[test_owner]), test_y, test_owner, clients)
        pooled = np.nansum(mine * n) / n.sum()
        known = np.isfinite(mine)
        found[name] = (100 * pooled if classes else -pooled, 100 * float((mine < alone)[known].mean()))
    return found, classes


def main(out: Path) -> None:
    blocks = {file.stem: compared(file) for file in sorted((out / "outputs").glob("*.npz"))}
    ways = [*next(iter(blocks.values()))[0]]
    rows = {name: [*found.values()] for name, (found, _) in blocks.items()}
    if accuracies := [rows[name] for name, (_, classes) in blocks.items() if classes]:
        rows["mean of accuracies"] = np.mean(accuracies, 0).tolist()
    print("| fit | " + " | ".join(ways) + " |\n|---|" + "--:|" * len(ways))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{value:.2f} ({worse:.0f})" for value, worse in row) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
