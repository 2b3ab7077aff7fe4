"""`personafl report` as users call it."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from personafl.cli import app
from personafl.errors import RunError
from tests.report.folders import compared, written


def call(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)


def test_the_page_goes_into_the_folder_and_replaces_itself(tmp_path):
    compared(tmp_path / "runs")
    for _ in range(2):
        answer = call(tmp_path / "runs")
        assert answer.exit_code == 0 and str(tmp_path / "runs" / "report.html") in answer.output
    assert (tmp_path / "runs" / "report.html").read_text().startswith("<!doctype html>")


def test_json_says_what_was_made(tmp_path):
    run = written(tmp_path / "run").path
    found = json.loads(call(run, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures", "--json").output)
    assert found["report"] == str(tmp_path / "page.html") and found["bytes"] == (tmp_path / "page.html").stat().st_size
    assert found["methods"] == ["ditto"] and found["runs"] == 1
    assert str(tmp_path / "figures" / "curves.pdf") in found["figures"]
    assert not (run / "report.html").exists()


def test_somebody_elses_page_is_not_overwritten(tmp_path):
    run = written(tmp_path / "run").path
    (run / "report.html").write_text("<p>mine</p>")
    with pytest.raises(RunError, match="is not a report"):
        call(run)
    with pytest.raises(RunError, match="there is no folder"):
        call(run, "--out", tmp_path / "nowhere" / "page.html")
    with pytest.raises(RunError, match="no folder"):
        call(tmp_path / "nothing")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_ends_the_server_cleanly(tmp_path):
    run = written(tmp_path / "run").path
    command = [sys.executable, "-c", "from personafl.cli import main; main()", "report", str(run), "--serve"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        assert line.startswith("Serving at http://127.0.0.1:")
        with urlopen(line.split()[2] + "version") as answer:
            assert len(answer.read()) == 16
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == "Stopped.\n"
        assert process.returncode == 0
    assert not (run / "report.html").exists()
