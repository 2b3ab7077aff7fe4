"""Flower's own simulator gives what the loop engine gives."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from personafl.backends.flower import simulation
from personafl.config import parse
from personafl.errors import ConfigError
from personafl.federation import Federation
from tests.backends.flower.problem import SETTINGS, federation, loop, same, same_values, server_state

PROGRAM = """
import sys
from pathlib import Path
from personafl.config import parse
from personafl.jobs import train_config
from tests.backends.flower.problem import SETTINGS, federation

if __name__ == "__main__":
    for rounds, resume in ((1, False), (2, True)):
        tables = {**SETTINGS, "algorithm": "ditto", "rounds": rounds, "checkpoint_every": 1, "engine": "flower-sim"}
        run = train_config(parse(tables), Path(sys.argv[1]), resume, federation=federation())
    print(run.personal("site-4"))
"""


@pytest.mark.slow
def test_the_simulator_equals_the_loop_engine_and_goes_on(tmp_path):
    from personafl.runs.run import Run

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "flower")],
        capture_output=True, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, reference = Run(tmp_path / "flower"), loop(tmp_path / "loop", "ditto", federation(), rounds=2)
    assert same(server_state(ours), server_state(reference))
    assert same_values(ours.clients(2), reference.clients(2))
    for client in federation().ids:
        models = [{n: p.detach() for n, p in run.personal(client).named_parameters()} for run in (ours, reference)]
        assert same(*models)


def many(sites):
    """A federation in which each site has a rule of its own."""
    rng, data = np.random.default_rng(1), {}
    for m in range(sites):
        x = rng.normal(size=(20, 4)).astype(np.float32)
        y = (x @ rng.normal(size=4) > 0).astype(np.int64)
        data[f"site-{m}"] = {split: (x[k::3], y[k::3]) for k, split in enumerate(("train", "val", "test"))}
    return Federation.from_clients(data, classes=2)


def tables(engine):
    return parse({**SETTINGS, "algorithm": "selffl", "rounds": 2, "checkpoint_every": 1, "engine": engine})


MANY = """
import sys
from pathlib import Path
from personafl.jobs import train_config
from tests.backends.flower.test_simulation import many, tables

if __name__ == "__main__":
    train_config(tables("flower-sim"), Path(sys.argv[1]), federation=many(int(sys.argv[2])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("sites", [100, 500])
def test_many_sites_in_the_simulator_are_to_the_bit_those_of_the_loop(tmp_path, sites):
    """With sums over so many that an order of their own would show."""
    from personafl.jobs import train_config
    from personafl.runs.run import Run

    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "flower"), str(sites)],
        capture_output=True, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, reference = Run(tmp_path / "flower"), train_config(tables("loop"), tmp_path / "loop", federation=many(sites))
    assert same(server_state(ours), server_state(reference))
    assert same_values(ours.clients(2), reference.clients(2))
    for client in many(sites).ids:
        models = [{n: p.detach() for n, p in run.personal(client).named_parameters()} for run in (ours, reference)]
        assert same(*models)


SEVERAL = """
import sys
from tests.runs.test_named_inputs import federation, trained

if __name__ == "__main__":
    trained(federation(), "ditto", "flower-sim", out=sys.argv[1])
"""


@pytest.mark.slow
def test_several_inputs_in_the_simulator(tmp_path):
    from personafl.runs.run import load_run
    from tests.runs.test_named_inputs import TextAndTable, outputs, trained
    from tests.runs.test_named_inputs import federation as several

    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, str(tmp_path / "flower")],
        capture_output=True, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, reference = load_run(tmp_path / "flower", module=TextAndTable()), trained(several(), "ditto")
    for client in several().ids:
        assert outputs(ours, several(), client).equal(outputs(reference, several(), client))


def test_without_flower_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(simulation.importlib.util, "find_spec", lambda name: None)
    from personafl.jobs import train_config

    with pytest.raises(ConfigError, match=r"pip install 'personafl\[flower\]'"):
        train_config(parse({**SETTINGS, "engine": "flower-sim"}), tmp_path / "run", federation=federation())
