"""A fit whose candidates are trained on a real Ray, on the loopback address: the same as in this process."""

import pytest

import personafl as pf
from personafl.errors import ConfigError
from personafl.study.ray_calls import calls_on_ray
from personafl.study.ray_launcher import cpus
from tests.fitting.test_fit import QUICK, federation, module

pytest.importorskip("ray", reason="needs Ray: pip install 'personafl[ray]'")

__all__ = ["federation"]


def scores(fitted: pf.Fit) -> dict[tuple[int, int], float]:
    return {(t["number"], o["rounds"]): o["score"] for t in fitted.summary["trials"] for o in t["outcomes"]}


def test_candidates_on_ray_are_those_of_this_process(federation, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")
    same = {"methods": ["ditto"], "trials": 4, "seed": 3, **QUICK}
    here = pf.fit(federation, module(), out=tmp_path / "here", **same)
    there = pf.fit(federation, module(), out=tmp_path / "ray", on="ray", at_once=1, **same)
    assert scores(there) == scores(here)
    for key in ("weights", "way", "newcomer", "refit"):
        assert there.summary[key] == here.summary[key], key
    assert there.summary["refit"] and there.number["value"] == here.number["value"]
    first = there.path / "candidates" / there.summary["finalists"][0]["folder"]
    assert (first / "run.toml").exists(), "its folder is where those of this process are"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"on": "moon"}, "on = 'moon': must be one of here, ray"),
        ({"address": "10.0.0.1:6379"}, "address is for a fit on Ray"),
        ({"on": "ray", "address": "127.0.0.1:1"}, "no Ray answers there"),
    ],
)
def test_places_that_are_none(federation, settings, says):
    with pytest.raises(ConfigError, match=says):
        pf.fit(federation, module(), **settings, **QUICK)


def test_no_more_go_on_than_the_cluster_has_cpus_for(tmp_path):
    """Those that wait there would begin to count their time when they begin, and the budget would be over."""
    with calls_on_ray(tmp_path, None, 1000, 1, None) as calls:
        assert calls.at_once == cpus()
