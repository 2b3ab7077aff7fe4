"""Robust rules against slow plain versions, closed forms, and attacks at their breakdown points."""

import numpy as np
import pytest
import torch

from personafl.training import robust_rules
from personafl.training.robust_rules import geometric_median, krum, shrinking, trimmed_mean, weighted_median

STAND_INS = {
    "median": weighted_median,
    "trimmed-mean": lambda rows, weights: trimmed_mean(rows, weights, 0.3),
    "geometric-median": geometric_median,
}


def drawn(k: int, p: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.normal(size=(k, p))), torch.from_numpy(draw.integers(1, 9, k).astype(float))


def repeated(values, weights) -> np.ndarray:
    """A weight of w is the same as w answers."""
    return np.repeat(values.numpy(), weights.numpy().astype(int), axis=0)


# --- slow plain versions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "p", "seed"), [(1, 3, 0), (2, 3, 1), (5, 4, 2), (8, 3, 3), (13, 2, 4)])
def test_the_median_is_that_of_as_many_answers_as_weights_say(k, p, seed):
    rows, weights = drawn(k, p, seed)
    np.testing.assert_allclose(weighted_median(rows, weights), np.median(repeated(rows, weights), axis=0))


@pytest.mark.parametrize(("k", "trim", "seed"), [(5, 0.2, 0), (10, 0.1, 1), (10, 0.4, 2), (7, 0.0, 3)])
def test_the_trimmed_mean_leaves_out_the_ends(k, trim, seed):
    rows, _ = drawn(k, 4, seed)
    cut = round(trim * k)
    plain = np.sort(rows.numpy(), axis=0)[cut : k - cut].mean(0)
    np.testing.assert_allclose(trimmed_mean(rows, torch.ones(k), trim), plain)


def test_the_trimmed_mean_with_weights_is_that_of_as_many_answers():
    rows, _ = drawn(5, 3)
    weights = torch.tensor([2.0, 3.0, 1.0, 3.0, 1.0])  # 20% of 10 are two of them
    plain = np.sort(repeated(rows, weights), axis=0)[2:8].mean(0)
    np.testing.assert_allclose(trimmed_mean(rows, weights, 0.2), plain)


@pytest.mark.parametrize("seed", range(4))
def test_krum_is_as_the_paper_writes_it(seed):
    rows, _ = drawn(9, 5, seed)
    n, f, scores = 9, 3, []
    for i in range(n):
        apart = sorted(float((rows[i] - rows[j]).square().sum()) for j in range(n) if j != i)
        scores.append(sum(apart[: n - f - 2]))
    for many in (1, 4, 9):
        assert krum(rows, f, many).tolist() == sorted(np.argsort(scores, kind="stable")[:many].tolist())


@pytest.mark.parametrize(("k", "p", "seed"), [(4, 2, 0), (7, 3, 1), (9, 40, 2)])
def test_nothing_is_nearer_to_all_than_the_geometric_median(k, p, seed):
    rows, weights = drawn(k, p, seed)
    found = geometric_median(rows, weights)
    toward = rows - found
    gradient = (weights[:, None] * toward / toward.norm(dim=1, keepdim=True)).sum(0)
    assert gradient.norm() < 1e-6 * weights.sum()  # a convex function: no better point


def test_blocks_of_columns_make_no_difference(monkeypatch):
    rows, weights = drawn(6, 50)
    whole = {name: rule(rows, weights) for name, rule in STAND_INS.items()} | {"krum": krum(rows, 1, 3)}
    monkeypatch.setattr(robust_rules, "COLUMNS", 7)
    parts = {name: rule(rows, weights) for name, rule in STAND_INS.items()} | {"krum": krum(rows, 1, 3)}
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name])


# --- closed forms of the geometric median --------------------------------------------------------------------------


def test_of_points_on_a_line_it_is_the_median():
    line = torch.tensor([[0.0], [1.0], [4.0], [9.0], [70.0]]) * torch.tensor([1.0, 2.0, -1.0])
    torch.testing.assert_close(geometric_median(line, torch.ones(5)), line[2])
    torch.testing.assert_close(geometric_median(line[:4], torch.ones(4)), (line[1] + line[2]) / 2)


@pytest.mark.parametrize("angle", [120.0, 135.0, 175.0])
def test_of_a_triangle_with_a_wide_angle_it_is_that_corner(angle):
    turned = np.deg2rad(angle)
    triangle = torch.tensor([[0.0, 0.0], [2.0, 0.0], [3 * np.cos(turned), 3 * np.sin(turned)]]).double()
    torch.testing.assert_close(geometric_median(triangle, torch.ones(3)), triangle[0], atol=1e-6, rtol=0)


def test_of_another_triangle_it_sees_all_sides_at_120_degrees():
    triangle = torch.tensor([[0.0, 0.0], [5.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    ways = torch.nn.functional.normalize(triangle - geometric_median(triangle, torch.ones(3)), dim=1)
    torch.testing.assert_close((ways @ ways.T)[~torch.eye(3, dtype=bool)], torch.full((6,), -0.5).double())


def test_it_starts_at_a_row_that_is_not_the_best_and_leaves_it():
    """The mean is a row here, and the majority is elsewhere."""
    rows = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [3.0, 3.0], [11.9, 11.9]])
    rows = torch.cat([rows[:3], rows.mean(0, keepdim=True), rows[3:]])
    found = geometric_median(rows, torch.ones(6))
    toward = (rows - found).double()
    pulls = toward / toward.norm(dim=1, keepdim=True).clamp(min=1e-12)
    at = toward.norm(dim=1) < 1e-6
    assert pulls[~at].sum(0).norm() <= at.sum() + 1e-5


# --- what stays the same -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STAND_INS)
def test_rules_move_with_the_answers_and_do_not_mind_their_order(name):
    rule, (rows, weights) = STAND_INS[name], drawn(7, 4)
    found, order = rule(rows, weights), torch.randperm(7)
    torch.testing.assert_close(rule(3 * rows + 5, weights), 3 * found + 5)
    torch.testing.assert_close(rule(rows[order], weights[order]), found)
    torch.testing.assert_close(rule(rows, 10 * weights), found)


def test_answers_that_are_close_together_and_far_from_0_are_told_apart():
    rows, weights = drawn(9, 5)
    assert krum(rows + 1e8, 3, 4).tolist() == krum(rows, 3, 4).tolist()
    torch.testing.assert_close(
        geometric_median(rows + 1e8, weights) - 1e8, geometric_median(rows, weights), atol=1e-5, rtol=0
    )


def test_the_geometric_median_turns_with_the_answers():
    rows, weights = drawn(7, 4)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    torch.testing.assert_close(geometric_median(rows @ turn, weights), geometric_median(rows, weights) @ turn)


@pytest.mark.parametrize("name", STAND_INS)
def test_of_equal_answers_they_are_the_answer(name):
    row = torch.randn(1, 6)
    torch.testing.assert_close(STAND_INS[name](row.repeat(5, 1), torch.arange(1.0, 6.0)), row[0])


def test_trivial_settings_are_the_plain_mean():
    rows, weights = drawn(9, 6)
    plain = (weights[:, None] * rows).sum(0) / weights.sum()
    torch.testing.assert_close(trimmed_mean(rows, weights, 0.0), plain)
    assert krum(rows, 0, 9).tolist() == list(range(9))
    assert shrinking(rows.norm(dim=1), np.inf).tolist() == [1.0] * 9


# --- breakdown points ----------------------------------------------------------------------------------------------


def far_away(honest: int, wrong: int, far: float = 1e9) -> torch.Tensor:
    """Honest answers within 1 of 0, and others that agree on a place far away."""
    return torch.cat([torch.rand(honest, 3) - 0.5, torch.full((wrong, 3), far)])


HOLDS = {
    "median": (weighted_median, (6, 5), (5, 6)),
    "geometric-median": (geometric_median, (6, 5), (5, 6)),
    "trimmed-mean": (lambda rows, weights: trimmed_mean(rows, weights, 0.2), (8, 2), (7, 3)),
}


@pytest.mark.parametrize("name", HOLDS)
def test_a_rule_holds_up_to_its_breakdown_point_and_breaks_beyond(name):
    rule, held, broken = HOLDS[name]
    assert rule(far_away(*held), torch.ones(sum(held))).abs().max() < 10
    assert rule(far_away(*broken), torch.ones(sum(broken))).abs().max() > 1e8


def test_krum_holds_for_n_of_at_least_2f_plus_3():
    assert krum(far_away(6, 3), 3, 1) < 6  # 9 ≥ 2 · 3 + 3
    assert krum(far_away(6, 3), 3, 6).tolist() == [0, 1, 2, 3, 4, 5]
    # 7 < 2 · 4 + 3: four that say the same are nearest to each other
    assert krum(far_away(3, 4, 1e3), 4, 1) >= 3


def test_clipping_bounds_what_one_answer_does_and_breaks_with_a_majority():
    assert shrinking(torch.tensor([1.0, 1.2, 0.9, 1e9, 1e9, 1.1]), 3.0)[3] * 1e9 == pytest.approx(3.3)
    assert shrinking(torch.tensor([1.0, 1e9, 1e9]), 3.0).tolist() == [1.0, 1.0, 1.0]
    assert shrinking(torch.tensor([1.0, 1.0, 1e9, 1e9]), 3.0)[2] < 1  # half of them cannot raise the lower median
    assert shrinking(torch.zeros(3), 3.0).tolist() == [1.0, 1.0, 1.0]
