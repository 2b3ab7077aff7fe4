"""Figures for papers: every one that the data has, as PNG and PDF."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from personafl.errors import RunError
from personafl.report import report_data
from personafl.report.figures import write_figures
from tests.report.folders import compared, predicted, written


def everything(folder):
    compared(folder, seeds=1)
    run = written(folder / "a", "fedamp", predictions=predicted([0, 1, 1], [-1.0, 1, -1], [0, 1, 2]))
    (run.path / "evaluations").mkdir()
    save_file({"weights": np.full((4, 4), 0.25, np.float32)}, run.path / "evaluations" / "round-000001.safetensors")
    known = {"sigma2": [1.0, 2, 3, np.nan], "gain": [1.0, 2, 3, np.nan]}
    written(folder / "selffl-$x$", "selffl", columns=known)
    chosen = {"teacher_round": [1.0, 1, 1, 0], "imitation": [0.0, 0.5, 0.5, 0], "temperature": [1.0, 5, 5, 1]}
    written(folder / "p", "persfl", columns=chosen)
    return report_data([folder])


def test_every_figure_is_written_as_png_and_pdf(tmp_path):
    data = everything(tmp_path / "runs")
    made = write_figures(data, tmp_path / "figures")
    names = {"curves", "distribution", "pairs", "clients", "uncertainty", "collaboration", "distillation", "detection"}
    assert {(p.stem, p.suffix) for p in made} == {(n, s) for n in names for s in (".png", ".pdf")}
    for path in made:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"%PDF")


def test_the_same_data_gives_the_same_bytes(tmp_path):
    data = report_data([written(tmp_path / "run").path])
    made = write_figures(data, tmp_path / "figures")
    before = {path: path.read_bytes() for path in made}
    write_figures(data, tmp_path / "figures")
    assert {path: path.read_bytes() for path in made} == before


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path):
    data = report_data([written(tmp_path / "run").path])
    (tmp_path / "curves.png").write_bytes(b"mine")
    with pytest.raises(RunError, match=r"curves\.png exists"):
        write_figures(data, tmp_path)
    assert (tmp_path / "curves.png").read_bytes() == b"mine"
