"""The ledger of a site: nothing that was told is forgotten, and the limit on it holds."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from personafl.backends.flower.ledger import Entry, Ledger, spent
from personafl.errors import ConfigError, RunError
from personafl.training.accounting import composed_epsilon, epsilon
from tests.backends.flower.asking import Operator
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import as_table, federation, flower
from tests.backends.flower.test_faults import deaf, node_of

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
PRIVATE = {"clip": 1.0, "noise": 4.0, "delta": 1e-5}


def filled(folder: Path, count: int = 4) -> Ledger:
    ledger = Ledger(folder, "ann")
    for round in range(1, count + 1):
        ledger.add(Entry("a1", round, "update", "fedavg", 1.0, 4.0, 1e-5))
    return ledger


# --- what it holds -------------------------------------------------------------------------------------------------


def test_every_answer_is_a_line_that_only_its_owner_can_read(tmp_path):
    ledger = filled(tmp_path)
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert lines[0].keys() == {
        "time",
        "run",
        "round",
        "what",
        "algorithm",
        "clip",
        "noise",
        "delta",
        "batches",
        "digest",
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (ledger.path, ledger.head))
    assert [entry.round for entry in ledger.entries()] == [1, 2, 3, 4]
    assert not Ledger(tmp_path / "new", "ann").entries() and not (tmp_path / "new").exists()


def test_the_line_is_on_the_disk_before_the_answer_leaves(tmp_path, monkeypatch):
    """A ledger that cannot be written keeps the answer, and the new state, from leaving."""
    ann = Operator(tmp_path)
    ann.train(ann.job())

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("personafl.storage.chained_log.os.fsync", full)
    with pytest.raises(RunError, match=r"writing .*ledger.jsonl failed: No space left on device; free some space"):
        ann.train(ann.job(), round=2, accepted=1)
    assert [path.name for path in ann.folder.glob("state/*/round-*")] == ["round-000001.safetensors"]
    monkeypatch.undo()
    assert len(ann.site.ledger.entries()) == 1
    ann.train(ann.job(), round=2, accepted=1)
    assert len(ann.site.ledger.entries()) == 2


@pytest.mark.parametrize("position", range(0, 700, 23))
def test_a_changed_byte_is_noticed(tmp_path, position):
    ledger = filled(tmp_path)
    data = bytearray(ledger.path.read_bytes())
    data[position] ^= 1
    ledger.path.write_bytes(data)
    with pytest.raises(RunError, match=r"^site ann cannot trust the ledger of what it has given away: .*backup"):
        ledger.entries()


def test_a_cut_ledger_is_noticed(tmp_path):
    ledger = filled(tmp_path)
    whole = ledger.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for rest in (
        b"",
        b"".join(lines[:3]),
        whole[:-1],
        whole[:-30],
        b"".join(lines[1:]),
        b"".join(lines[:2] + lines[3:]),
    ):
        ledger.path.write_bytes(rest)
        with pytest.raises(RunError, match="cannot trust the ledger"):
            ledger.add(Entry("a1", 5, "update", "fedavg"))
        assert ledger.path.read_bytes() == rest
    ledger.path.unlink()
    for look in (ledger.entries, lambda: ledger.add(Entry("a1", 5, "update", "fedavg"))):
        with pytest.raises(RunError, match=r"ledger.jsonl is gone"):
            look()
    ledger.path.write_bytes(whole)
    assert len(ledger.entries()) == 4
    ledger.head.unlink()
    with pytest.raises(RunError, match=r"has 4 lines, ledger.head knows of 0"):
        ledger.entries()


def test_a_power_cut_while_a_line_was_written_costs_nothing(tmp_path):
    """That answer has not left: before its line is whole, or before the head knows of it."""
    ledger = filled(tmp_path)
    head = ledger.head.read_bytes()
    with open(ledger.path, "ab") as file:
        file.write(b'{"algorithm": "fed')
    assert len(ledger.entries()) == 4
    ledger.add(Entry("a1", 5, "update", "fedavg", 1.0, 4.0, 1e-5))
    assert [entry.round for entry in ledger.entries()] == [1, 2, 3, 4, 5]
    ledger.head.write_bytes(head)
    assert len(ledger.entries()) == 5
    ledger.add(Entry("a1", 6, "update", "fedavg", 1.0, 4.0, 1e-5))
    assert [entry.round for entry in ledger.entries()] == [1, 2, 3, 4, 5, 6]


MANY = """
import os, sys
from pathlib import Path
from personafl.errors import ConfigError
from personafl.backends.flower.ledger import Entry, Ledger, check_budget
for name in sys.argv[2:]:
    if os.fork() == 0:
        break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in sys.argv[2:]))
ledger = Ledger(Path(sys.argv[1]), "ann")
for round in range(15):
    entry = Entry(name, round, "update", "fedavg", 1.0, 4.0, 1e-5)
    try:
        ledger.add(entry, lambda entries: check_budget("ann", entries, entry, 12.0, 1e-5))
    except ConfigError:
        pass
"""


def test_processes_at_the_same_time_do_not_spend_more_than_there_is(tmp_path):
    assert subprocess.run([sys.executable, "-c", MANY, str(tmp_path), "one", "two", "three"]).returncode == 0
    entries = Ledger(tmp_path, "ann").entries()
    assert {entry.run for entry in entries} == {"one", "two", "three"}
    assert spent(entries, 1e-5) <= 12 < composed_epsilon([4.0] * (len(entries) + 1), 1e-5)


# --- what it adds up to --------------------------------------------------------------------------------------------


def test_epsilon_adds_up_over_answers_with_different_noise():
    """Equal noise: as k answers. Different: as the one answer whose μ² is the sum."""
    assert composed_epsilon([3.0] * 7, 1e-6) == pytest.approx(epsilon(3.0, 1e-6, 7), rel=1e-9)
    assert composed_epsilon([3.0, 4.0], 1e-5) == pytest.approx(epsilon(12 / 5, 1e-5, 1), rel=1e-9)  # 3, 4, 5
    assert composed_epsilon([], 1e-5) == 0 and composed_epsilon([8.0, 0.0], 1e-5) == np.inf
    assert composed_epsilon([8.0, 1e-200], 1e-5) == np.inf


def test_only_updates_count(tmp_path):
    entries = [Entry("a", 1, what, "fedavg") for what in ("nothing", "failed", "metrics")]
    assert spent(entries, 1e-5) == 0 and spent([*entries, Entry("a", 1, "update", "selffl")], 1e-5) == np.inf


def test_a_site_refuses_what_would_go_beyond_its_epsilon(tmp_path):
    """Over several runs; the last answer that fits is given, and a refused one costs nothing."""
    ann = Operator(tmp_path, most_epsilon=4.5, delta=1e-5)
    for seed, noise in enumerate((4.0, 4.0, 8.0)):
        ann.train(ann.job(seed=seed, privacy={**PRIVATE, "noise": noise}))
    job = ann.job(seed=9, privacy={**PRIVATE, "noise": 2.0})
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            ann.train(job)
        assert str(refused.value) == (
            "site ann allows ε = 4.5 over all runs (most_epsilon, at δ = 1e-05): its answers so far have spent "
            f"{epsilon(8 / 3, 1e-5, 1):.4g}, and this one with privacy.noise = 2 would make it "
            f"{epsilon(8 / 5, 1e-5, 1):.4g}"  # 4, 4 and 8 are as one of 8/3, with 2 as one of 8/5
        )
    assert not list(ann.folder.glob(f"state/{job.run}/*")) and len(ann.site.ledger.entries()) == 3
    ann.train(ann.job(seed=9, privacy={**PRIVATE, "noise": 4.0}))


def test_answers_without_noise_are_beyond_any_epsilon(tmp_path):
    ann = Operator(tmp_path, most_epsilon=1e6)
    for job in (ann.job(), ann.job("selffl"), ann.job(privacy={"clip": 1.0, "noise": 0.0, "delta": 1e-5})):
        with pytest.raises(ConfigError, match="would make it inf"):
            ann.train(job)
    ann.train(ann.job("separate"))  # which tells nothing


def test_a_round_that_is_asked_again_is_a_new_answer_and_counted(tmp_path):
    ann = Operator(tmp_path)
    job = ann.job(privacy=PRIVATE)
    one, two = (ann.train(job).up["theta"] for _ in range(2))
    assert float((one - two).abs().min()) > 0
    assert spent(ann.site.ledger.entries(), 1e-5) == pytest.approx(epsilon(4.0, 1e-5, 2))


def test_an_old_secret_is_ignored(tmp_path):
    ann = Operator(tmp_path)
    (ann.folder / "secret").write_text("0" * 64)
    job = ann.job(privacy=PRIVATE)
    one, two = (ann.train(job).up["theta"] for _ in range(2))
    assert not (one == two).any()


# --- a run ---------------------------------------------------------------------------------------------------------


def test_a_run_reports_what_the_ledgers_say(tmp_path):
    """Answers that did not arrive were sent, and count; what was told in other runs counts at the site."""
    data, privacy = federation(), {"clip": 1.0, "noise": 2.0}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    node_of(grid, "site-4")[1].says = deaf(2)
    node_of(grid, "site-6")[1].hears = deaf(2)
    for seed in (3, 4):
        run = flower(tmp_path / str(seed), grid, "ditto", privacy=privacy, seed=seed)
        told = dict(zip(*(as_table(run).column(n).to_pylist() for n in ("client", "epsilon")), strict=True))
        count = {"site-2": 3, "site-4": 3, "site-6": 2}
        assert told == {client: pytest.approx(epsilon(2.0, 1e-5, k)) for client, k in count.items()}
    entries = Ledger(tmp_path / "sites" / "site-6", "site-6").entries()
    assert len({entry.run for entry in entries}) == 2
    assert spent(entries, 1e-5) == pytest.approx(epsilon(2.0, 1e-5, 4))


def test_the_operator_hears_why_and_the_run_goes_on(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    late = node_of(grid, "site-4")[1]
    with open(late.site, "a") as file:
        file.write("most_epsilon = 7.0\n")
    run = flower(tmp_path / "flower", grid, "ditto", privacy={"clip": 1.0, "noise": 2.0}, rounds=4, eval_every=1)
    reasons = [record.get("dropped", {}) for record in run.rounds()]
    assert reasons[0] == reasons[1] == {} and all(list(r) == ["site-4"] for r in reasons[2:])
    assert "site site-4 allows ε = 7 over all runs (most_epsilon" in reasons[2]["site-4"]
    row = as_table(run).to_pylist()[-2]
    assert (row["client"], row["personal_correct"], row["n_test"]) == ("site-4", None, 0)
    assert row["epsilon"] == pytest.approx(epsilon(2.0, 1e-5, 2)), "it reports no metrics, but what it has spent"
    note = json.loads((run.path / "models" / "elsewhere.json").read_text())
    assert note["without"] == [] and (late.site.parent / "models" / "personal.safetensors").exists()
