"""A judgement in words: the work that was done, who is shown to be better than whom, and the two votes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from personafl.study.columns import BY_KEY
from personafl.study.differences import LEVEL, Difference, fewest_clients, listed, mean
from personafl.study.judgement import Judgement

UNEQUAL = 1.1
"""Work is unequal where the most is more than this times the least."""
TEST = "one-sided sign-flip test over clients on the quantity that ranks, mean over seeds first"


def sentences(judgement: Judgement) -> list[str]:
    """The answer: unequal work first, then who is better, then the PersFL thesis's two questions."""
    found = [work(judgement), answer(judgement), *against_the_majority(judgement)]
    if len(judgement.rows) > 1:
        for question, verdict in (("Best performance", judgement.performance), ("Fairest", judgement.fairness)):
            who = " and ".join(judgement.name(w) for w in verdict.winners) or "no winner"
            found.append(f"{question}: {who} ({verdict.why}).")
    return [sentence for sentence in found if sentence]


def work(judgement: Judgement) -> str:
    """Whether the methods did the same work; nothing where that is not known."""
    methods = {row.method: row.key for row in judgement.rows if row.model == "personal"}
    for key, form in (("gradients", "computed {}"), ("steps", "took in a round {}")):
        done = {m: mean(judgement.values[row].get(key, ())) for m, row in methods.items()}
        if len(done) < 2 or not all(map(np.isfinite, done.values())):
            continue
        if max(done.values()) > UNEQUAL * min(done.values()):
            return _unequal(done, key, form)
        if key == "gradients":
            return f"All methods did the same work: a client computed about {np.mean([*done.values()]):,.0f} gradients."
    return ""


def answer(judgement: Judgement) -> str:
    """Who is better on these clients; a winner only where one is shown."""
    rows = [row.key for row in judgement.rows if np.isfinite(_score(judgement, row.key))]
    if len(rows) < 2:
        return ""
    seeds = max(map(len, judgement.seeds.values()))
    where = f"{_count(judgement.clients, 'client')} and {_count(seeds, 'seed')}"
    once = " One seed: another training may decide otherwise." if seeds == 1 else ""
    if judgement.winner is not None:
        others = "the other model" if len(rows) == 2 else f"each of the {len(rows) - 1} other models"
        return f"{_first(judgement)}, and is shown to be better than {others} on these {where}.{once}"
    worse = [d.method for d in judgement.differences if d.significant]
    if worse:
        level = [row for row in rows if row not in (*worse, judgement.best)]
        named = [listed([judgement.name(row) for row in some]) for some in (level, worse)]
        return (
            f"No single winner on these {where}: {_first(judgement)}. Not shown to be worse: {named[0]}. "
            f"Shown to be worse: {named[1]}.{once}"
        )
    apart = f"No winner: the {len(rows)} models cannot be told apart on these {where} ({_range(judgement, rows)})."
    return apart + _few(judgement, rows)


def against_the_majority(judgement: Judgement) -> list[str]:
    """Models that are behind over all samples and yet ahead for most clients."""
    return [
        f"{judgement.name(d.method)} is ahead of {judgement.name(d.against)} for {d.ahead:,} of {d.pairs:,} clients, "
        "though behind over all samples."
        for d in judgement.differences
        if d.ahead > d.pairs / 2 and d.mean_difference < 0
    ]


def says(judgement: Judgement, d: Difference) -> str:
    """A difference from the best in words: which way it goes, and whether it is shown."""
    best = judgement.name(d.against)
    count = f"better for {d.ahead:,} and worse for {d.behind:,} of {d.pairs:,} clients"
    if d.significant:
        return f"shown to be worse than {best}; {count}"
    if d.p_holm <= LEVEL:
        return (
            f"not shown to be worse than {best}, as it is behind in {d.seeds_behind} of {d.seeds} seeds only; {count}"
        )
    return f"not shown to be worse than {best}; {count}"


def dagger(judgement: Judgement) -> str:
    """What † means."""
    return f"† not shown to be worse than {judgement.name(judgement.best)} ({TEST}; {LEVEL:.0%} for all together)."


def _unequal(done: dict[str, float], key: str, form: str) -> str:
    by_work: dict[str, list[str]] = {}
    for method, much in sorted(done.items(), key=lambda item: -item[1]):
        by_work.setdefault(BY_KEY[key].write(much), []).append(method)
    parts = [f"{much} with {listed(methods)}" for much, methods in by_work.items()]
    unequal = form.format(", ".join(parts).replace(" with", f" {key} with", 1))
    return f"The methods did unequal work: a client {unequal}; `personafl compare --equal-work` gives each the same."


def _first(judgement: Judgement) -> str:
    which = f"{'highest' if judgement.measure.better > 0 else 'lowest'} {judgement.measure.label}"
    return f"{judgement.name(judgement.best)} has the {which}, {_written(judgement, judgement.best)}"


def _range(judgement: Judgement, rows: Sequence[str]) -> str:
    low, high = (pick(rows, key=lambda row: _score(judgement, row)) for pick in (min, max))
    ends = [f"{_written(judgement, row)} ({judgement.name(row)})" for row in (low, high)]
    return f"{judgement.measure.label} from {ends[0]} to {ends[1]}"


def _few(judgement: Judgement, rows: Sequence[str]) -> str:
    needed = fewest_clients(len(rows))
    if judgement.clients >= needed:
        return ""
    return f" So few clients cannot show any difference between {len(rows)} models: that takes at least {needed}."


def _score(judgement: Judgement, row: str) -> float:
    return mean(judgement.values[row].get(judgement.primary, ()))


def _written(judgement: Judgement, row: str) -> str:
    return judgement.measure.write(_score(judgement, row))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
