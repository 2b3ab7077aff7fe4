"""What is trained next, in a world whose learning curves and times are known."""

import numpy as np
import pytest

from personafl.fitting.candidates import REFERENCES, Candidate, Outcome, Portfolio
from personafl.fitting.search import Search, rungs
from personafl.settings import Local

METHODS = [*REFERENCES, "ditto", "fedamp", "apfl"]
ENDS = {"separate": 0.5, "fedavg": 0.6, "fedavg-ft": 0.7, "ditto": 0.65, "fedamp": 0.9, "apfl": 0.4}


def score(method: str, settings: dict, rounds: int) -> float:
    """FedAMP is best, begins slowly, and wants a learning rate of 0.1."""
    slow = 0.3 if method == "fedamp" and rounds < 5 else 1.0
    away = abs(np.log10(settings.get("local.lr", 0.1) / 0.1))
    return slow * ENDS[method] * (1 - np.exp(-rounds / 8)) - 0.1 * away


def played(
    budget: float, rounds: int = 54, trials: int | None = None, seed: int = 0, second: float = 0.1, loads: float = 0.0,
    falters: float = np.inf,
):  # fmt: skip
    """`loads`: seconds more of the first training; `falters`: when the machine does nothing for three seconds."""
    search = Search(Portfolio(METHODS, Local()), Local(), rounds, seed, trials)
    spent, attempts = 0.0, []
    while (attempt := search.next(budget - spent)) is not None and spent < budget:
        candidate = attempt.candidate
        seconds = second * (attempt.rounds - candidate.rounds) + (0 if attempts else loads)
        if spent < falters <= spent + seconds:
            seconds += 3.0
        spent += seconds
        reached = score(candidate.method, candidate.settings, attempt.rounds)
        search.tell(candidate, Outcome(attempt.rounds, reached, np.nan, seconds, "x"))
        attempts.append(attempt)
    return search, attempts, spent


@pytest.mark.parametrize(("budget", "loads"), [(20.0, 0.0), (60.0, 0.0), (20.0, 11.0)])
def test_the_budget_is_kept_and_used(budget, loads):
    """Also where the first training takes long, as it loads what all need."""
    _, _, spent = played(budget, loads=loads)
    assert 0.9 * budget < spent <= budget


def test_every_method_is_seen_and_the_best_is_found_though_it_begins_slowly():
    search, _, _ = played(120.0)
    assert {c.method for c in search.candidates} == set(METHODS)
    assert search.leader is not None and search.leader.method == "fedamp"
    assert search.leader.rounds == 54


def test_the_references_are_trained_to_the_end_with_the_leader():
    search, _, _ = played(60.0)
    assert {c.method for c in search.candidates if c.rounds == 54} >= {*REFERENCES, "fedamp"}


@pytest.mark.parametrize("seed", range(3))
def test_the_references_are_trained_to_the_end_on_a_machine_that_falters(seed):
    """Their last trainings take 1.1 seconds each; the three come just before them."""
    search, _, _ = played(60.0, second=0.02, falters=56.4, seed=seed)
    longest = {name: max(c.rounds for c in search.candidates if c.method == name) for name in REFERENCES}
    assert longest == dict.fromkeys(REFERENCES, 54)


def test_bad_candidates_are_given_up_early():
    search, _, _ = played(300.0, second=0.3)
    lengths = [sum(c.rounds >= length for c in search.candidates) for length in rungs(54)]
    assert lengths[0] > 2 * lengths[1] > 4 * lengths[3] / 2
    assert sum(c.method == "apfl" and c.rounds == 54 for c in search.candidates) == 0


def test_settings_are_searched_and_not_only_methods():
    search, _, _ = played(300.0, second=0.3)
    tried = {c.settings.get("local.lr") for c in search.candidates if c.method == "fedamp"}
    assert len(tried) > 5
    given = next(c for c in search.candidates if c.method == "fedamp")
    assert given.settings == {}, "a method is tried as it was given first"


def test_no_more_candidates_than_asked_for_and_the_same_ones_again():
    first, _, _ = played(500.0, trials=9, seed=4)
    again, _, _ = played(500.0, trials=9, seed=4)
    assert [(c.method, c.settings, c.rounds) for c in first.candidates] == [
        (c.method, c.settings, c.rounds) for c in again.candidates
    ]
    assert len(first.candidates) == 9


def test_a_method_that_fails_is_not_tried_on_and_on():
    search = Search(Portfolio(METHODS, Local()), Local(), 9, 0)
    for _ in range(40):
        attempt = search.next(1e9)
        assert attempt is not None
        bad = attempt.candidate.method == "apfl"
        reached = np.nan if bad else score(attempt.candidate.method, attempt.candidate.settings, attempt.rounds)
        search.tell(attempt.candidate, Outcome(attempt.rounds, reached, np.nan, 0.1, "", "it diverged" if bad else ""))
    assert sum(c.method == "apfl" for c in search.candidates) == 1


def test_a_candidate_that_got_worse_keeps_its_better_models():
    made = Candidate(0, "ditto", {}, {3: Outcome(3, 0.8, np.nan, 1, "a"), 9: Outcome(9, 0.7, 0.75, 1, "b")})
    assert made.score == 0.8 and made.rounds == 9


def test_two_at_once_are_never_the_same_candidate_and_take_turns_to_the_end():
    search = Search(Portfolio(METHODS, Local()), Local(), 54, 0, trials=14, at_once=2)
    going, most = [], 0
    while True:
        while len(going) < 2 and (attempt := search.next(1e9)) is not None:
            assert attempt.candidate.number not in [other.candidate.number for other in going]
            going.append(attempt)
        if not going:
            break
        most = max(most, len(going))
        done = going.pop(0)
        reached = score(done.candidate.method, done.candidate.settings, done.rounds)
        search.tell(done.candidate, Outcome(done.rounds, reached, np.nan, 0.1, "x"))
    assert most == 2 and len(search.candidates) == 14
    assert {c.method for c in search.candidates if c.rounds == 54} >= {*REFERENCES, "fedamp"}


def test_after_an_interruption_no_number_is_given_twice():
    search = Search(Portfolio(METHODS, Local()), Local(), 54, 0)
    for number in (0, 2):  # 1 was going on when the process was killed
        search.put(Candidate(number, "separate", {}, {2: Outcome(2, 0.5, np.nan, 0.1, "x")}))
    attempt = search.next(1e9)
    assert attempt is not None and attempt.candidate.number == 3
