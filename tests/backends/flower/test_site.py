"""What a site takes part in, what it refuses, and what it keeps."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from flwr.app import Message

from personafl.backends.flower.site_data import read_data, read_site
from personafl.backends.flower.state_history import StateHistory
from personafl.errors import ConfigError, DataError, RunError
from personafl.federation import Federation
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, same, server_state
from tests.backends.flower.test_faults import is_training, node_of


def site(folder: Path, **table) -> Path:
    path = folder / "site.toml"
    path.write_text(tomli_w.dumps({"id": "ann", "data": "data.npz", "folder": ".", **table}))
    return path


# --- its file and its data -----------------------------------------------------------------------------------------


def test_a_site_splits_its_samples_as_the_whole_federation_does(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y)
    ours = read_data(read_site(site(tmp_path)), seed=5, classes=2)
    theirs = Federation.from_clients({"bob": (x[:9], y[:9]), "ann": (x, y)}, seed=5)
    for split, (features, labels) in theirs.client("ann").items():
        assert torch.equal(ours.client("ann")[split][0], features)
        assert torch.equal(ours.client("ann")[split][1], labels)


def test_a_table_is_read_by_its_columns(tmp_path):
    table = {"age": [1.0, 2.0, 3.0, 4.0], "size": [5, 6, 7, 8], "sick": [0, 1, 1, 0],
             "part": ["train", "test", "train", "val"], "name": ["a", "b", "c", "d"]}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    data = read_data(read_site(site(tmp_path, data="rows.parquet", label="sick", split="part")))
    assert data.client("ann")["train"][0].tolist() == [[1.0, 5.0], [3.0, 7.0]]
    assert data.client("ann")["test"][1].tolist() == [1] and data.client("ann")["val"][1].tolist() == [0]
    chosen = read_data(read_site(site(tmp_path, data="rows.parquet", label="sick", features=["size"])))
    assert sorted(chosen.x.flatten().tolist()) == [5.0, 6.0, 7.0, 8.0]
    with pytest.raises(DataError, match="are text, which each site would number in its own way"):
        read_data(read_site(site(tmp_path, data="rows.parquet", label="name")))
    with pytest.raises(ConfigError, match="label must name"):
        read_data(read_site(site(tmp_path, data="rows.parquet")))


def test_a_saved_federation_gives_the_site_its_own_part_only(tmp_path):
    fed = federation()
    fed.save(tmp_path / "saved")
    data = read_data(read_site(site(tmp_path, id="site-4", data="saved")))
    assert data.ids == ("site-4",) and len(data.x) == int(sum(fed.sizes(s)[1] for s in ("train", "val", "test")))
    assert torch.equal(data.client("site-4")["test"][0], fed.client("site-4")["test"][0])
    with pytest.raises(DataError, match="holds 3 clients, and none is called 'ann'"):
        read_data(read_site(site(tmp_path, data="saved")))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"alow": ["fedavg"]}, "unknown key 'alow'"),
        ({"allow": ["fedavgg"]}, "must be among the algorithms"),
        ({"id": ""}, "id = ''"),
        ({"splits": [0.5, 0.5]}, "splits"),
        ({"threads": 0}, "threads = 0"),
        ({"least_noise": -1.0}, "least_noise = -1.0"),
        ({"most_epsilon": 0.0}, "most_epsilon = 0.0: must be above 0"),
        ({"delta": 1.0}, "delta = 1.0: must be in (0, 1)"),
        ({"metrics": "no"}, "metrics = 'no'"),
        ({"least_batch_size": 0}, "least_batch_size = 0: must be at least 1"),
        ({"least_samples": 1.5}, "least_samples = 1.5"),
        ({"most_steps": 0}, "most_steps = 0"),
    ],
)
def test_a_wrong_site_file_is_one_line(tmp_path, table, reason):
    with pytest.raises(ConfigError) as caught:
        read_site(site(tmp_path, **table))
    assert reason in str(caught.value) and "\n" not in str(caught.value)


# --- what it takes part in -----------------------------------------------------------------------------------------


def run_with(tmp_path, change, algorithm="ditto", **more):
    """The reasons why a site took no part in the first round, where its message was changed on its way."""
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation(), **more))

    def hears(message: Message) -> Message:
        if is_training(message, 1):
            change(message.content)
        return message

    node_of(grid, "site-4")[1].hears = hears
    return flower(tmp_path / "flower", grid, algorithm, rounds=1).rounds()[0].get("dropped", {})


def change_order(**values):
    return lambda content: content["order"].update(values)


def change_job(**values):
    def change(content):
        content["order"]["job"] = json.dumps(json.loads(content["order"]["job"]) | values)

    return change


BAD = {
    "another upload": (
        change_order(upload=json.dumps({"theta": ["float32", [10]], "v": ["float32", [10]]})),
        "ditto sends theta by this site's code, the server asks for theta, v",
    ),
    "no upload": (change_order(upload="[]"), "does not say what it wants"),
    "an unknown algorithm": (change_job(algorithm={"name": "steal"}), "algorithm = 'steal' is unknown"),
    "an unknown setting": (change_job(algorithm={"name": "ditto", "run": "x"}), "unknown key 'algorithm.run'"),
    "another model": (change_job(model={"name": "mlp"}), "the initial weights are not the server's"),
    "an unknown model": (change_job(model={"name": "os.system"}), "model = 'os.system' is unknown"),
    "another version": (change_job(personafl="9.9"), "the server has personafl 9.9"),
    "other samples": (change_job(shape=[5]), "its data cannot be used: its own log says why"),
    "not a job": (change_order(job="{"), "is not JSON"),
    "someone else's": (change_order(client="site-2"), "the message is for 'site-2', this is site site-4"),
    "a state that was never there": (change_order(accepted=1), "has no state of round 1"),
    "a round in the past": (change_order(round=0), "cannot be"),
    "more steps than anybody has time for": (
        change_job(local={"steps": 10**8, "batch_size": 4}),
        "takes at most 1,000,000 steps (most_steps)",
    ),
    "a model for which there is no memory": (
        change_job(model={"name": "mlp", "hidden": [10**5, 10**5]}),
        "at most 100,000,000 parameters (most_parameters)",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_site_does_not_do_whatever_the_server_says(tmp_path, what):
    change, reason = BAD[what]
    dropped = run_with(tmp_path, change)
    assert list(dropped) == ["site-4"] and reason in dropped["site-4"]
    assert not list((tmp_path / "sites" / "site-4").glob("state/*/round-*"))


def test_a_site_takes_part_in_what_it_allows(tmp_path):
    assert run_with(tmp_path / "yes", lambda content: None, "fedper", allow=["fedper", "ditto"]) == {}
    dropped = run_with(tmp_path / "no", lambda content: None, "fedavg", allow=["ditto"])
    assert dropped["site-4"] == "site site-4 does not take part in 'fedavg': not in its allow"
    assert set(dropped) == {"site-2", "site-4", "site-6"}


def test_a_site_can_insist_on_noise(tmp_path):
    dropped = run_with(tmp_path, lambda content: None, "ditto", least_noise=2.0)
    assert dropped["site-4"] == "site site-4 takes part with privacy.noise of at least 2, this run has 0"


def test_a_site_with_limits_of_its_own_says_why_it_refuses(tmp_path):
    dropped = run_with(tmp_path, lambda content: None, "ditto", least_batch_size=8)
    assert dropped["site-4"] == (
        "site site-4 trains with batches of at least 8 samples (least_batch_size), this run has 4"
    )


def test_weights_that_do_not_follow_from_the_seed_are_sent(tmp_path):
    data = federation()
    start = loop(tmp_path / "before", "fedavg", data).path / "models" / "global.safetensors"
    model = {"name": "mclr", "weights": str(start)}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, "fedper", model=model)
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "fedper", data, model=model)))


# --- what it keeps -------------------------------------------------------------------------------------------------


def test_a_state_of_another_algorithm_is_not_taken(tmp_path):
    versions = StateHistory(tmp_path, "ann")
    versions.write(1, {"v": torch.zeros(3)})
    with pytest.raises(RunError, match="belongs to another algorithm or model"):
        versions.read(1, {"v": torch.zeros(4)})
    (tmp_path / "round-000001.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(RunError, match="cannot be read"):
        versions.read(1, {"v": torch.zeros(3)})


FULL = """
import json, resource, sys
from pathlib import Path
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower
from tests.backends.flower.test_faults import is_training, node_of

folder = Path(sys.argv[1])
grid = MemoryGrid(sites_of(folder / "sites", federation()))
state = folder / "sites" / "site-4" / "state"
before = {}

def hears(message):
    if is_training(message, 2):
        before.update({p: p.read_bytes() for p in state.rglob("round-*")})
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, resource.RLIM_INFINITY))
    return message

def says(message):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if is_training(message, 2):
        assert {p: p.read_bytes() for p in state.rglob("round-*")} == before
    return message

node = node_of(grid, "site-4")[1]
node.hears, node.says = hears, says
run = flower(folder / "flower", grid, "ditto")
print(json.dumps([record.get("dropped") for record in run.rounds()]))
"""


def test_a_full_disk_costs_the_site_a_round_and_not_its_state(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    first, second, third = json.loads(done.stdout.strip().splitlines()[-1])
    assert first is None and third is None
    assert list(second) == ["site-4"] and "File too large; free some space" in second["site-4"]
