"""What the folder and the report of a fit say of each client's choice, and of methods that were never tried."""

import json
import shutil

import numpy as np
import pytest

import personafl as pf
from personafl.errors import RunError
from personafl.fitting.training import Trainer
from personafl.report import report_data
from personafl.runs.run import Run
from tests.fitting.test_fit import QUICK, federation, module

__all__ = ["federation"]


@pytest.fixture(scope="module")
def found(federation, tmp_path_factory) -> pf.Fit:
    out = tmp_path_factory.mktemp("fits") / "fit"
    made = pf.fit(federation, module(), methods=["ditto"], trials=5, seed=3, out=out, **QUICK)
    assert made.summary["way"]["kind"] == "mixture" and made.summary["way"]["alpha"], "the case that is worth a test"
    return made


def test_the_report_of_a_fit_says_why_each_client_got_its_model(found):
    """Its scores on its own validation samples are those of the models of the search, which have not seen them."""
    own, table = report_data([found.path])["fit"]["own"], found.clients()
    n = np.array(own["n"])
    assert n.tolist() == table.column("n_val").to_pylist()
    assert np.allclose(own["fit"], table.column("personal_val_correct").to_numpy() / n, rtol=1e-4)
    searched = {model["label"]: model["searched"] for model in found.summary["finalists"]}
    best = max(found.summary["finalists"], key=lambda model: model["score"])
    assert (own["best"], best["who"]) == (best["label"], "personal")
    for key, label in (("with_best", own["best"]), ("alone", "alone")):
        there = Run(found.path / "candidates" / searched[label]).clients().column("personal_val_correct").to_numpy()
        assert np.allclose(own[key], there / n, rtol=1e-4), label
    alpha = found.summary["way"]["alpha"]
    assert np.allclose(own["shares"], n / (n + alpha))
    assert [own["says"][k] for k in own["why"]] == found.table().column("why").to_pylist()


def test_the_folder_of_an_earlier_fit_is_read_without_what_it_lacks(found, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(found.path, old)
    told = json.loads((old / "fit.json").read_text())
    for key in ("validation", "notes"):
        del told[key]
    (old / "fit.json").write_text(json.dumps(told))
    assert pf.load_fit(old, module=module()).table().equals(found.table())
    own, new = report_data([old])["fit"]["own"], report_data([found.path])["fit"]["own"]
    assert own == {key: value for key, value in new.items() if key not in ("best", "with_best", "alone")}


@pytest.mark.parametrize(
    ("damage", "why"),
    [({"validation": {"best": "alone", "with_best": [0.5], "alone": [0.5]}}, "there must be a value for each client"),
     ({"validation": {"best": "alone", "with_best": ["x"] * 16, "alone": [0.5] * 16}}, "with_best"),
     ({"way": {"kind": "mixture", "alpha": -1.0, "sentence": ""}}, "alpha"), ({"notes": [1]}, "notes")],
)  # fmt: skip
def test_wrong_reasons_in_the_folder_of_a_fit_are_refused_in_one_line(found, tmp_path, damage, why):
    copy = tmp_path / "copy"
    shutil.copytree(found.path, copy)
    (copy / "fit.json").write_text(json.dumps(json.loads((copy / "fit.json").read_text()) | damage))
    with pytest.raises(RunError, match=why):
        report_data([copy])


def test_methods_that_were_never_tried_are_named(found, federation, monkeypatch):
    few = pf.fit(federation, module(), methods=["ditto", "fedamp", "apfl"], trials=4, seed=3, **QUICK)
    sentence = "2 of 6 methods were not tried, as trials = 4 allowed no more candidates: fedamp, apfl."
    assert sentence in few.summary["notes"] and sentence in few.sentences()
    assert sentence in report_data([few.path])["notes"]
    assert found.summary["notes"] == [] == report_data([found.path])["notes"]
    train = Trainer.train

    def slow(self, attempt, until, listeners=()):
        return None if attempt.candidate.method == "fedamp" else train(self, attempt, until, listeners)

    monkeypatch.setattr(Trainer, "train", slow)
    late = pf.fit(federation, module(), methods=["ditto", "fedamp"], trials=5, seed=3, **QUICK)
    assert late.summary["notes"] == ["1 of 5 methods was not tried, for lack of time: fedamp."]
