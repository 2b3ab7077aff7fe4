"""What `fit_quality.py` found, as Markdown.

On test data: how far `fit` is above the best single method (as given or tuned) in hindsight, above the one that is best
on another half of the clients, and above the one that validation data would choose; ranks; and how many clients are
worse off than alone (as given or as the fit tuned it, by validation data), in numbers and shown by a test over each
client's own samples. Two trainings alone that differ in initial weights and batches only say how many clients look
worse off, or are shown to be, where there is no difference.
"""

import numpy as np
from scipy.stats import binom

from personafl.metrics.permutation import sign_flip
from personafl.streams import generator
from personafl.study.differences import LEVEL


def signed(entry: dict) -> float:
    """A test value, more is better; points of 100 for a share."""
    return entry["better"] * entry["test"] * (100 if entry["measure"] == "accuracy" else 1)


def alone_of(line: dict) -> dict:
    """Training alone: with the validation data where the fit was trained with it, else as given or tuned by it."""
    if line.get("refit"):
        return line["alone"]
    return max([line["given"]["separate"], line["alone"]], key=lambda entry: entry["val"])


def differences(entry: dict, other: dict) -> np.ndarray:
    """By how much each client does better, NaN where nothing is known."""
    return entry["better"] * (np.array(entry["clients"], float) - np.array(other["clients"], float))


def worse_off(entry: dict, alone: dict) -> float:
    """Share of the clients that look worse off than alone."""
    gain = differences(entry, alone)
    return float((gain < 0)[np.isfinite(gain)].mean())


def shown_worse(entry: dict, alone: dict) -> float:
    """Share of the clients that are shown to be worse off: exact sign test over a client's own test samples, 5 %."""
    if "hits" not in entry or "hits" not in alone:
        return np.nan
    n = np.array(entry["n"])
    mine, other = (np.array(list(e["hits"])) == "1" for e in (entry, alone))
    owner = np.repeat(np.arange(len(n)), n)
    lost, won = (np.bincount(owner, which, len(n)).astype(int) for which in (other & ~mine, mine & ~other))
    return float(np.mean([binom.sf(b - 1, b + a, 0.5) <= LEVEL for b, a in zip(lost[n > 0], won[n > 0], strict=True)]))


def gap_of_halves(line: dict, draws: int = 200) -> float:
    """The gap to the best single method, chosen by the test data of half of the clients and measured on the others.

    The best of many by test data owes some of that to chance; this gap does not.
    """
    entries, n = [line["fit"], *rivals(line).values()], np.array(line["fit"]["n"], float)
    values = np.array([e["clients"] for e in entries], float) * line["fit"]["better"]
    points = np.where(np.isfinite(values) & (n > 0), values * n, 0.0)
    rng, gaps = generator(line["seed"], "halves"), []
    for _ in range(draws):
        half = rng.permutation(len(n)) < len(n) // 2
        for one, other in ((half, ~half), (~half, half)):
            best = 1 + points[1:, one].sum(1).argmax()
            gaps.append(100 * (points[best, other].sum() - points[0, other].sum()) / n[other].sum())
    return float(np.mean(gaps))


def rivals(line: dict) -> dict[str, dict]:
    """The single methods."""
    return {
        **{f"{m}, given": e for m, e in line["given"].items()},
        **{f"{m}, tuned": e for m, e in line["tuned"].items()},
    }


def by_validation(line: dict) -> dict:
    """The single method that validation data would choose."""
    return max(rivals(line).values(), key=lambda entry: entry["val"])


def compared(line: dict) -> dict:
    """The figures of a block."""
    others, fit, alone = rivals(line), line["fit"], alone_of(line)
    best = max(others.values(), key=signed)
    single = by_validation(line)
    again = line["single again"] if line.get("refit") else single
    points = differences(fit, again) * np.array(fit["n"], float)
    points = points[np.isfinite(points)]
    second, first = line["alone again"], line["given"]["separate"]
    every = [*others.values(), *([line["random"]] if "random" in line else [])]
    return {
        "federation": line["federation"], "seed": line["seed"], "share": fit["measure"] == "accuracy",
        "fit": signed(fit), "before": signed(line.get("fit before", fit)), "best": signed(best),
        "by validation": signed(single), "again": signed(again),
        "random": signed(line["random"]) if "random" in line else np.nan, "alone": signed(alone),
        "halves": gap_of_halves(line), "p better": sign_flip(points), "p worse": sign_flip(-points),
        "rank": 1 + sum(signed(e) > signed(fit) for e in every),
        "worse": [worse_off(fit, alone), worse_off(again, alone), worse_off(second, first)],
        "shown": [shown_worse(fit, alone), shown_worse(again, alone), shown_worse(second, first)],
    }  # fmt: skip


def percent(values: list[float]) -> str:
    return " / ".join("–" if v != v else f"{100 * v:.1f}" for v in values)


def average(rows: list[dict], key: str) -> str:
    return percent(list(np.nanmean([row[key] for row in rows], 0)))


def mean(gains: np.ndarray) -> str:
    gains = gains[np.isfinite(gains)]  # not every block has random search
    if not len(gains):
        return "not measured"
    return f"{gains.mean():+.2f} points (p better {sign_flip(gains):.3f}, worse {sign_flip(-gains):.3f})"


def tables(lines: list[dict]) -> str:
    """What was found, as Markdown."""
    said = []
    for budget in sorted({line["budget"] for line in lines}):
        mine = [compared(line) for line in lines if line["budget"] == budget]
        said += [f"## Budget {budget:g} s of one thread, {len(mine)} blocks", "",
                 "| federation | seed | fit | fit before its last training | best in hindsight | best by validation | "
                 "that one trained again | random search | alone | p fit better than that one | p worse | "
                 "worse off than alone, %: fit / by validation / alone again | shown |",
                 "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
        for row in sorted(mine, key=lambda each: (each["federation"], each["seed"])):
            numbers = [row[k] for k in ("fit", "before", "best", "by validation", "again", "random", "alone")]
            cells = [f"{abs(v):.2f}" for v in numbers] + [f"{row[key]:.3f}" for key in ("p better", "p worse")]
            cells += [percent(row["worse"]), percent(row["shown"])]
            said.append(f"| {row['federation']} | {row['seed']} | " + " | ".join(cells) + " |")
        shares = [row for row in mine if row["share"]]
        keys = ("before", "best", "by validation", "again", "random")
        over = {key: np.array([row["fit"] - row[key] for row in shares]) for key in keys}
        before = np.array([row["before"] - row["best"] for row in shares])
        halves = -np.mean([row["halves"] for row in shares])
        said += [
            "",
            f"Accuracy only ({len(shares)} blocks), fit over the best single method in hindsight {mean(over['best'])}; "
            f"over the best on the other half of the clients {halves:+.2f}; over the "
            f"one that validation data would choose {mean(over['by validation'])}; over that one trained again with "
            f"the validation data {mean(over['again'])}; over random search {mean(over['random'])}; over itself before "
            f"its last training {mean(over['before'])}, which was {mean(before)} over the best in hindsight.",
            f"All: mean rank {np.mean([row['rank'] for row in mine]):.1f}; beside that one trained again significantly "
            f"better in {sum(row['p better'] <= LEVEL for row in mine)}, worse in "
            f"{sum(row['p worse'] <= LEVEL for row in mine)}.",
            f"Clients worse off than alone, % (fit / by validation / alone again): all {average(mine, 'worse')}; "
            f"accuracies {average(shares, 'worse')}; shown to be {average(shares, 'shown')}.",
            "",
        ]
    return "\n".join(said)
