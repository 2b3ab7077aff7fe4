"""What TensorBoard, MLflow and Weights & Biases show of a run is what its folder holds, also after an interruption."""

import json
import logging
import socket
import sqlite3
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import personafl as pf
from personafl.errors import ConfigError, RunError, TrainingFailed
from personafl.runs.tracking import scalars


class Stop(pf.Listener):
    """Ends a run after a round, before its checkpoint."""

    def __init__(self, round, error):
        self.round, self.error = round, error

    def round_ended(self, record, seconds):
        if record["round"] == self.round:
            raise self.error


@pytest.fixture(autouse=True)
def nothing_leaves_the_machine(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    connect = socket.socket.connect

    def connect_here(self, address):
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


@pytest.fixture(scope="module")
def federation():
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=6, alpha=0.5))


def train(federation, out, listeners=(), rounds=10, resume=False, **more):
    settings = {"activity": 0.5, "eval_every": 2, "checkpoint_every": 5, "engine": "stacked", "threads": 1} | more
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    return pf.train(
        federation, model, rounds=rounds, out=out, resume=resume, progress=False, listeners=listeners, **settings
    )


def curves_of(run):
    """Names and points of all curves, from the run folder: {name: {round: value}}."""
    curves = {}
    for record, times in zip(run.rounds(), run.folder.timings(), strict=True):
        seconds = {key.removesuffix("_seconds"): value for key, value in times.items() if key != "round"}
        for name, value in scalars(record, seconds).items():
            curves.setdefault(name, {})[record["round"]] = value
    return curves


def assert_same_curves(found, run):
    """Each step once, in order, with the folder's value (as float32, and times rounded to microseconds)."""
    wanted = curves_of(run)
    assert wanted["accuracy/personal"].keys() == {2, 4, 6, 8, 10} and wanted["seconds/round"].keys() == {*range(1, 11)}
    assert set(found) == set(wanted)
    for name, points in found.items():
        assert [step for step, _ in points] == list(wanted[name]), name
        np.testing.assert_allclose([value for _, value in points], list(wanted[name].values()), rtol=1e-6, atol=1e-6)


def brittle(federation):
    """The same clients, and one whose numbers are so large that its update overflows."""
    parts = {
        name: (federation.x[a:b].numpy(), federation.y[a:b].numpy())
        for name, (a, b) in zip(federation.ids, federation.bounds[:, [0, 3]].tolist(), strict=True)
    }
    parts["huge"] = (np.full((20, 64), 1e30, np.float32), np.arange(20) % 10)
    return pf.Federation.from_clients(parts)


# --- TensorBoard


@pytest.fixture
def board():
    return pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")


def events(board, folder):
    found = board.EventAccumulator(str(folder), {"scalars": 0, "histograms": 0, "tensors": 0})
    return found.Reload()


def points(found):
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def text(found, name):
    return {e.step: e.tensor_proto.string_val[0].decode() for e in found.Tensors(f"{name}/text_summary")}


def test_tensorboard_shows_the_run(board, federation, tmp_path):
    run = train(federation, tmp_path / "run", [pf.TensorBoard(tmp_path / "board")])
    found = events(board, tmp_path / "board")
    assert_same_curves(points(found), run)
    assert run.manifest["resolved"]["fingerprint"] in text(found, "run")[0]


def test_tensorboard_shows_how_the_clients_are_spread(board, federation, tmp_path):
    run = train(federation, tmp_path / "run", [pf.TensorBoard(tmp_path / "board")], rounds=4)
    for who in ("personal", "global"):
        for event in events(board, tmp_path / "board").Histograms(f"clients/{who}_accuracy"):
            accuracy = run.clients(event.step).column(f"{who}_accuracy").to_numpy()
            shown = event.histogram_value
            np.testing.assert_allclose(
                [shown.num, shown.min, shown.max, shown.sum],
                [6, accuracy.min(), accuracy.max(), accuracy.sum()],
                rtol=1e-6,
            )
            assert sum(shown.bucket) == 6 and max(shown.bucket_limit) <= 1


@pytest.mark.parametrize(("stopped_after", "goes_on_from"), [(3, 0), (5, 0), (8, 5)])
def test_tensorboard_goes_on_with_a_resumed_run(board, federation, tmp_path, stopped_after, goes_on_from):
    """There is a checkpoint every five rounds; a run that has none yet starts anew."""
    with pytest.raises(OSError, match="power cut"):
        stop = Stop(stopped_after, OSError("power cut"))
        train(federation, tmp_path / "run", [pf.TensorBoard(tmp_path / "board"), stop])
    assert max(step for step, _ in points(events(board, tmp_path / "board"))["seconds/round"]) == stopped_after
    run = train(federation, tmp_path / "run", [pf.TensorBoard(tmp_path / "board")], resume=True)
    found = events(board, tmp_path / "board")
    assert_same_curves(points(found), run)
    assert [e.step for e in found.Histograms("clients/personal_accuracy")] == [2, 4, 6, 8, 10]
    assert text(found, "run").keys() == {0, goes_on_from}


def test_tensorboard_says_who_was_left_out_and_what_ended_the_run(board, federation, tmp_path):
    some = brittle(federation)
    train(some, tmp_path / "run", [pf.TensorBoard(tmp_path / "board")], rounds=2, activity=1.0)
    found = events(board, tmp_path / "board")
    assert points(found)["training/failed"] == [(1, 1.0), (2, 1.0)]
    assert text(found, "left out") == {1: "huge", 2: "huge"}
    with pytest.raises(TrainingFailed):
        alone = pf.Federation.from_clients({"huge": (some.x[-20:].numpy(), some.y[-20:].numpy())})
        train(alone, tmp_path / "broken", [pf.TensorBoard(tmp_path / "other")])
    assert "every active client diverged" in text(events(board, tmp_path / "other"), "stopped")[0]


def test_an_error_that_the_caller_is_handling_is_not_the_run_s(board, federation, tmp_path):
    try:
        raise ValueError("of the caller")
    except ValueError:
        train(federation, tmp_path / "run", [pf.TensorBoard(tmp_path / "board")], rounds=1)
    assert "stopped/text_summary" not in events(board, tmp_path / "board").Tags()["tensors"]


def test_a_folder_that_cannot_be_made_is_refused_at_once(board, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"creating .*board failed: Not a directory"):
        pf.TensorBoard(tmp_path / "file" / "board")


# --- MLflow


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Made once: a new database of MLflow goes through all versions that there were."""
    pytest.importorskip("mlflow", reason="no mlflow")
    pytest.importorskip("sqlalchemy", reason="no sqlalchemy, which MLflow's databases need")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
        pf.MLflow(f"sqlite:///{path}")
    return path


@pytest.fixture
def tracked(database):
    """Gives a listener of MLflow for an experiment, and reads the runs of it."""
    import mlflow

    class Tracked:
        uri = f"sqlite:///{database}"
        client = mlflow.MlflowClient(tracking_uri=uri)

        def listener(self, experiment, name=None):
            return pf.MLflow(self.uri, experiment, name)

        def runs(self, experiment):
            return self.client.search_runs([self.client.get_experiment_by_name(experiment).experiment_id])

        def curves(self, run):
            histories = {key: self.client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
            return {key: [(metric.step, metric.value) for metric in history] for key, history in histories.items()}

    return Tracked()


def test_mlflow_shows_the_run(tracked, federation, tmp_path):
    run = train(federation, tmp_path / "run", [tracked.listener("shown", "first")], local=pf.Local(lr=0.25))
    (found,) = tracked.runs("shown")
    assert_same_curves(tracked.curves(found), run)
    assert found.info.status == "FINISHED" and found.info.run_name == "first"
    assert found.data.params.items() >= {"seed": "0", "algorithm.name": "fedavg", "local.lr": "0.25"}.items()
    tags = {f"personafl.resolved.{key}": str(run.manifest["resolved"][key]) for key in ("fingerprint", "engine")}
    tags |= {f"personafl.versions.{name}": version for name, version in run.manifest["versions"].items()}
    assert found.data.tags.items() >= tags.items()


@pytest.mark.parametrize("stopped_after", [3, 8])
def test_mlflow_goes_on_with_a_resumed_run(tracked, federation, tmp_path, stopped_after):
    experiment = f"resumed {stopped_after}"
    with pytest.raises(OSError, match="power cut"):
        stop = Stop(stopped_after, OSError("power cut"))
        train(federation, tmp_path / "run", [tracked.listener(experiment), stop], rounds=9)
    (before,) = tracked.runs(experiment)
    assert before.info.status == "FAILED" and before.data.tags["personafl.error"] == "power cut"
    run = train(federation, tmp_path / "run", [tracked.listener(experiment)], rounds=10, resume=True)
    (found,) = tracked.runs(experiment)
    assert found.info.run_id == before.info.run_id and found.info.status == "FINISHED"
    assert "personafl.error" not in found.data.tags and found.data.tags["personafl.rounds"] == "10"
    curves = tracked.curves(found)
    # The times of rounds that were made twice are those of the first time.
    times = {name: [step for step, _ in curves.pop(name)] for name in list(curves) if name.startswith("seconds/")}
    assert times["seconds/round"] == [*range(1, 11)] and times["seconds/evaluation"] == [2, 4, 6, 8, 10]
    wanted = {name: list(of.items()) for name, of in curves_of(run).items() if not name.startswith("seconds/")}
    assert curves == wanted


def test_mlflow_keeps_runs_apart(tracked, federation, tmp_path):
    """Runs of the same second and settings too, where they have names."""
    manifest = train(federation, tmp_path / "run", rounds=1).manifest
    for name in ("one", "two", "one"):
        listener = tracked.listener("apart", name)
        listener.started(manifest, 0)
        listener.ended()
    assert sorted(run.info.run_name for run in tracked.runs("apart")) == ["one", "two"]


def test_mlflow_is_told_how_a_run_ended(tracked, federation, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(federation, tmp_path / "stopped", [tracked.listener("ended"), Stop(1, KeyboardInterrupt())])
    huge = pf.Federation.from_clients({"huge": (np.full((20, 64), 1e30, np.float32), np.arange(20) % 10)})
    with pytest.raises(TrainingFailed):
        train(huge, tmp_path / "broken", [tracked.listener("ended")])
    broken, stopped = tracked.runs("ended")
    assert stopped.info.status == "KILLED" and "personafl.error" not in stopped.data.tags
    assert broken.info.status == "FAILED" and "every active client diverged" in broken.data.tags["personafl.error"]


def test_a_run_goes_on_without_its_tracker(tracked, federation, tmp_path, caplog):
    """The database is damaged while the run goes on: one warning, and the run is the same as any other."""
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(tracked.uri.removeprefix("sqlite:///")) as source, sqlite3.connect(copy) as target:
        source.backup(target)

    class Damage(pf.Listener):
        def round_ended(self, record, seconds):
            if record["round"] == 2:
                with sqlite3.connect(copy) as database:
                    database.execute("DROP TABLE metrics")

    logging.getLogger("personafl").addHandler(caplog.handler)  # versions of MLflow replace the handlers of the root
    try:
        run = train(federation, tmp_path / "run", [Damage(), pf.MLflow(f"sqlite:///{copy}")], rounds=4)
    finally:
        logging.getLogger("personafl").removeHandler(caplog.handler)
    assert [record["round"] for record in run.rounds()] == [1, 2, 3, 4]
    (warning,) = {id(r): r for r in caplog.records if r.name == "personafl" and r.levelno >= logging.WARNING}.values()
    assert "is told nothing more about this run" in warning.getMessage() and "\n" not in warning.getMessage()


def test_a_server_that_is_not_there_is_one_line(database, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigError, match="MLflow cannot track runs at 'http") as refused:
            pf.MLflow(uri)
    assert "\n" not in str(refused.value)


# --- Weights & Biases


def messages(path):
    """The messages of a .wandb file: a header of 7 bytes, then LevelDB's log format."""
    data, place, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts.clear()


@pytest.fixture
def recorded():
    """Reads what is in a folder of wandb, run by run, by wandb's own messages."""
    wandb = pytest.importorskip("wandb", reason="no wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    def value(item):
        return "/".join(item.nested_key) or item.key, json.loads(item.value_json)

    def read(folder):
        wandb.teardown()  # its process writes what is left, and ends
        found = []
        for path in sorted(Path(folder).glob("wandb/offline-run-*/run-*.wandb")):
            records = [Record.FromString(message) for message in messages(path)]
            rows = [
                dict(map(value, record.history.item))
                for record in records
                if record.WhichOneof("record_type") == "history"
            ]
            first = next(record.run for record in records if record.WhichOneof("record_type") == "run")
            configs = [r.config for r in records if r.WhichOneof("record_type") == "config"]
            config = dict(value(item) for part in (first.config, *configs) for item in part.update)
            summary = dict(
                value(item) for r in records if r.WhichOneof("record_type") == "summary" for item in r.summary.update
            )
            ends = [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"]
            found.append({"run": first, "rows": rows, "config": config, "summary": summary, "ends": ends})
        return found

    yield read
    wandb.teardown()


def wandb_curves(rows):
    curves = {}
    for row in rows:
        for name, value in row.items():
            if not name.startswith(("_", "clients/")):
                curves.setdefault(name, []).append((row["_step"], value))
    return curves


def test_wandb_offline_shows_the_run(recorded, federation, tmp_path):
    listener = pf.WandB("thesis", "first", folder=tmp_path)
    run = train(federation, tmp_path / "run", [listener], local=pf.Local(lr=0.25))
    (found,) = recorded(tmp_path)
    assert_same_curves(wandb_curves(found["rows"]), run)
    assert (found["run"].project, found["run"].display_name, found["ends"]) == ("thesis", "first", [0])
    assert found["config"]["seed"] == 0 and found["config"]["local"]["lr"] == 0.25
    assert found["config"]["resolved"]["fingerprint"] == run.manifest["resolved"]["fingerprint"]
    last = found["rows"][-1]
    accuracy = run.clients().column("personal_accuracy").to_numpy()
    assert last["clients/personal_accuracy/values"] == np.histogram(accuracy, np.linspace(0, 1, 21))[0].tolist()


@pytest.mark.slow
def test_wandb_is_told_how_a_run_ended_and_goes_on_with_it(recorded, federation, tmp_path):
    """Offline, a resumed run is another file with the same id; it begins after the checkpoint."""
    with pytest.raises(OSError, match="power cut"):
        train(federation, tmp_path / "run", [pf.WandB(folder=tmp_path / "a"), Stop(8, OSError("power cut"))])
    train(federation, tmp_path / "run", [pf.WandB(folder=tmp_path / "b")], resume=True)
    (before,), (after,) = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    assert before["ends"] == [1] and before["summary"]["personafl.error"] == "power cut" and after["ends"] == [0]
    assert before["run"].run_id == after["run"].run_id
    assert [row["_step"] for row in before["rows"]] == [*range(1, 9)]
    assert [row["_step"] for row in after["rows"]] == [*range(6, 11)]


@pytest.mark.slow
def test_wandb_that_cannot_be_reached_is_one_line(recorded, federation, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
        with pytest.raises(ConfigError, match="Weights & Biases cannot track this run: ") as refused:
            train(federation, tmp_path / "run", [pf.WandB(folder=tmp_path, mode="online")], rounds=1)
    assert "\n" not in str(refused.value)


def test_a_mode_of_wandb_that_there_is_not():
    with pytest.raises(ConfigError, match="mode of WandB must be online or offline, not 'of'"):
        pf.WandB(mode="of")


# --- all


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("torch.utils.tensorboard", lambda: pf.TensorBoard("board"), "tensorboard"),
        ("mlflow", lambda: pf.MLflow("sqlite:///mlflow.db"), "mlflow"),
        ("wandb", lambda: pf.WandB(), "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path, module, make, extra):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'personafl\[{extra}\]'"):
        make()
    assert not list(tmp_path.iterdir())


def test_the_command_line_tells_all(board, tracked, recorded, tmp_path, monkeypatch):
    from personafl.cli import app

    monkeypatch.chdir(tmp_path)
    settings = 'rounds = 2\nengine = {name = "stacked", threads = 1}\npartition = {name = "iid", clients = 5}\n'
    Path("config.toml").write_text(settings + 'model = {name = "mlp", hidden = [8]}\n')
    arguments = ["run", "config.toml", "--out", "runs/cli", "--tensorboard", "boards", "--mlflow", tracked.uri]
    arguments += ["--wandb", "thesis"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert [step for step, _ in points(events(board, "boards/cli"))["training/lr"]] == [1, 2]
    assert [run.info.run_name for run in tracked.runs("personafl")] == ["cli"]
    (found,) = recorded(tmp_path)
    assert (found["run"].project, found["run"].display_name) == ("thesis", "cli")
