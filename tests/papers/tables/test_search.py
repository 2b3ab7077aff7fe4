"""Searches of tables: where they end, what they try and how much, with known functions in place of trainings."""

import itertools
import math
from dataclasses import replace

import pytest

from personafl.errors import ConfigError, RunError
from personafl.jobs import train_config
from personafl.study.launch import RunCache, in_process
from personafl_papers.tables.results import _searches
from personafl_papers.tables.search import (
    Axis,
    SearchPlan,
    best_place,
    ends,
    geometric,
    next_place,
    run_search,
    search,
    search_together,
)
from personafl_papers.tables.table import Found, planned, searching

RATE = geometric("local.lr", 0.001, 10.0, 0.03)
LAM = Axis("algorithm.lam", (0, 0.01, 0.1, 1, 10), 0.1)


def peak(axes, *at):
    """A function of the place that falls with the distance in places from the values `at`."""
    middle = [axis.values.index(value) for axis, value in zip(axes, at, strict=True)]
    return lambda place: -float(sum((a - m) ** 2 for a, m in zip(place, middle, strict=True)))


def values(axes, place):
    return tuple(axis.values[at] for axis, at in zip(axes, place, strict=True))


@pytest.mark.parametrize("top", [0.003, 0.03, 0.1, 3.0])
def test_a_peak_inside_is_found_with_worse_values_on_both_sides(top):
    scores = search((RATE,), 8, peak((RATE,), top))
    assert values((RATE,), best_place(scores)) == (top,) and ends((RATE,), scores) == {"local.lr": "inside"}
    at = RATE.values.index(top)
    assert {(at - 1,), (at + 1,)} <= set(scores)


@pytest.mark.parametrize("at", [(0.001, 10), (3.0, 0.01), (0.3, 1)])
def test_a_peak_far_from_the_start_is_walked_to_on_two_axes(at):
    axes = (RATE, LAM)
    scores = search(axes, 30, peak(axes, *at))
    assert values(axes, best_place(scores)) == at
    expected = {"local.lr": "at the limit" if at[0] == 0.001 else "inside"}
    expected |= {"algorithm.lam": "at the limit" if at[1] == 10 else "inside"}
    assert ends(axes, scores) == expected


@pytest.mark.parametrize("better", [math.log, lambda value: -math.log(value)], ids=["up", "down"])
def test_who_rises_without_end_goes_on_to_the_limit_and_it_is_said(better):
    scores = search((RATE,), 9, lambda place: better(RATE.values[place[0]]))
    assert best_place(scores)[0] in (0, len(RATE.values) - 1)
    assert ends((RATE,), scores) == {"local.lr": "at the limit"}


def test_a_search_that_runs_out_of_tries_says_so():
    scores = search((RATE,), 4, lambda place: float(place[0]))
    assert len(scores) == 4 and ends((RATE,), scores) == {"local.lr": "out of tries"}


@pytest.mark.parametrize("budget", [1, 5, 9, 45, 100])
def test_everybody_has_the_same_number_of_tries_and_none_twice(budget):
    tried = []

    def score(place):
        tried.append(place)
        return peak((RATE, LAM), 0.3, 1)(place)

    scores = search((RATE, LAM), budget, score)
    most = len(RATE.values) * len(LAM.values)
    assert len(tried) == len(scores) == min(budget, most) and len(set(tried)) == len(tried)


def test_of_equal_values_the_first_that_was_tried_is_taken_and_it_does_not_wander():
    scores = search((RATE, LAM), 9, lambda place: 1.0)
    assert values((RATE, LAM), best_place(scores)) == (0.03, 0.1), "the start"
    start = next(iter(scores))
    assert all(max(abs(a - b) for a, b in zip(place, start, strict=True)) <= 1 for place in scores)
    assert ends((RATE, LAM), scores) == {"local.lr": "inside", "algorithm.lam": "inside"}


@pytest.mark.parametrize(("most", "made"), [(0, 3), (5, 5), (20, 7)])
def test_where_the_budget_ends_before_a_search_is_inside_all_methods_go_on_alike(most, made):
    axes = {"rises": (RATE,), "inside": (RATE,), "short": (LAM,)}
    scores = {"rises": lambda place: float(place[0]), "inside": peak((RATE,), 0.03), "short": peak((LAM,), 0.1)}
    tried = search_together(
        axes, 3, most, lambda wave: {method: scores[method](place) for method, place in wave.items()}
    )
    assert {method: len(own) for method, own in tried.items()} == {
        "rises": made, "inside": made, "short": min(made, len(LAM.values)),
    }, "or all of its points"  # fmt: skip
    end = "at the limit" if made == 7 else "out of tries"
    assert ends((RATE,), tried["rises"]) == {"local.lr": end} and ends((RATE,), tried["inside"]) == {
        "local.lr": "inside"
    }


def test_the_next_try_is_a_nearest_one_to_the_best_along_the_first_axis_downwards_first():
    scores = {}
    order = []
    for _ in range(6):
        place = next_place((RATE, LAM), scores)
        scores[place] = -float(len(scores))  # the start stays the best
        order.append(values((RATE, LAM), place))
    assert order == [(0.03, 0.1), (0.01, 0.1), (0.1, 0.1), (0.03, 0.01), (0.03, 1), (0.01, 0.01)]


def test_a_failed_try_is_as_bad_as_can_be_and_never_chosen():
    scores = search((RATE,), 6, lambda place: -math.inf if RATE.values[place[0]] > 0.03 else place[0])
    assert values((RATE,), best_place(scores)) == (0.03,)


def test_a_whole_grid_gives_the_same_as_looking_everywhere():
    axes = (RATE, LAM)
    function = peak(axes, 0.3, 0.01)
    everywhere = max(itertools.product(range(len(RATE.values)), range(len(LAM.values))), key=function)
    assert best_place(search(axes, 1000, function)) == everywhere


def test_axes_that_make_no_sense_are_refused():
    for wrong, start in (((1.0, 0.1), 1.0), ((0.1, 0.1), 0.1), ((0.1, 1.0), 0.5)):
        with pytest.raises(ConfigError, match="values must rise"):
            Axis("local.lr", wrong, start)


CONFIG = {
    "rounds": 2, "eval_every": 1, "splits": [0.5, 0.2, 0.3], "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5}, "model": {"name": "mclr"},
    "local": {"lr": 0.1, "steps": 3, "batch_size": 10}, "engine": {"name": "stacked", "threads": 1},
}  # fmt: skip
AXES = {"fedavg": (geometric("local.lr", 0.01, 0.1, 0.03),), "ditto": (RATE, LAM)}


def test_trainings_are_scored_on_validation_data_and_as_many_for_each_method(tmp_path):
    plan = searching(CONFIG, {"fedavg": {}, "ditto": {}}, [0, 1], AXES, 3)
    cache = RunCache(tmp_path, lambda job, reused: (), in_process)
    fedavg, ditto = run_search(plan, cache)
    assert (len(fedavg.trials), len(ditto.trials), plan.jobs()) == (3, 3, 12)
    assert len(list(tmp_path.iterdir())) == 12
    best = max(ditto.trials, key=lambda trial: trial.score)
    assert ditto.chosen == best.settings and ditto.measure == "personal_val_accuracy"
    of_best = [cache._done[tmp_path / name].score for name in best.runs]
    assert best.score == pytest.approx(sum(score["personal_val_accuracy"] for score in of_best) / 2)
    [one, _] = _searches(Found(searches={"search": {"fedavg": fedavg, "ditto": ditto}}))
    assert one["budget"] == 3 and one["limits"] == {"local.lr": (0.01, 0.1)} and set(one["ends"]) == {"local.lr"}


@pytest.mark.parametrize("method", ["fedavg-ft", "fedamp", "selffl"])
def test_a_trial_scores_what_it_would_with_evaluations_on_the_way(method, tmp_path):
    plan = searching(CONFIG, {method: {}}, [0], {method: (geometric("local.lr", 0.1, 0.1, 0.1),)}, 1)
    [trial] = run_search(plan, RunCache(tmp_path, lambda job, reused: (), in_process))[0].trials
    often = train_config(planned(CONFIG, {method: {}}, [0]).job(method, 0).config, tmp_path / "often")
    assert plan.plan.trial(method, 0, {}).config.schedule.eval_every == 0
    assert trial.score == often.score["personal_val_accuracy"]


def test_a_search_that_is_ended_by_evaluations_has_them():
    plan = searching({**CONFIG, "patience": 2}, {"fedavg": {}}, [0], {"fedavg": AXES["fedavg"]}, 3)
    assert plan.plan.trial("fedavg", 0, {}).config.schedule.eval_every == 1


def test_a_method_with_fewer_points_than_tries_is_refused():
    with pytest.raises(ConfigError, match="search of fedavg: 3 points for 4 tries"):
        searching(CONFIG, {"fedavg": {}, "ditto": {}}, [0], AXES, 4)


def test_where_every_try_fails_the_search_says_so(tmp_path):
    whole = planned({**CONFIG, "local": {**CONFIG["local"], "lr": 1e30}}, {"fedavg": {}}, [0])
    plan = SearchPlan(replace(whole, methods=()), {"fedavg": (Axis("local.momentum", (0.0, 0.5), 0.0),)}, 2)
    with pytest.raises(RunError, match="every setting of fedavg failed"):
        run_search(plan, RunCache(tmp_path, lambda job, reused: (), in_process))
