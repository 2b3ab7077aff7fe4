"""Facts about configs: what is wrong is said in one line before anything runs, and what is left out is filled in."""

import pytest
import tomli_w

from personafl.algorithms import FedAvg, FedProx
from personafl.config import Config, parse, read_config
from personafl.data import IID, Digits, Dirichlet
from personafl.errors import ConfigError
from personafl.models import MLP, LinearModel
from personafl.settings import EngineSettings, Local, Schedule
from personafl.storage.folder import without_none
from personafl_papers.data.gaussian import Gaussian


def refused(values):
    """The one line that says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what is left out


def test_an_empty_config_is_the_defaults():
    assert parse({}) == Config(partition=Dirichlet(), model=MLP())


def test_a_missing_table_means_its_defaults():
    config = parse({"algorithm": {"name": "fedprox"}, "partition": {"name": "iid", "clients": 3}})
    assert config.algorithm == FedProx() and config.partition == IID(clients=3)
    assert (config.local, config.engine, config.schedule) == (Local(), EngineSettings(), Schedule())


def test_data_with_its_own_clients_gets_its_model_and_no_partition():
    config = parse({"data": "gaussian"})
    assert config.data == Gaussian() and config.partition is None and config.model == LinearModel()


def test_a_name_may_stand_for_its_table():
    for key in ("data", "partition", "model", "algorithm"):
        name = {"data": "digits", "partition": "iid", "model": "mclr", "algorithm": "separate"}[key]
        assert parse({key: name}) == parse({key: {"name": name}})
    assert parse({"engine": "loop"}) == parse({"engine": {"name": "loop"}})
    assert parse({"engine": "loop"}).engine.name == "loop"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine": "loop", "seed": 9, "splits": [0.5, 0.2, 0.3], "rounds": 7, "activity": 0.25},
        {"data": {"name": "gaussian", "clients": 4}, "algorithm": {"name": "fedprox-ft", "mu": 0.3}},
        {"data": "synthetic", "model": {"name": "mlp", "hidden": [8, 4], "dropout": 0.1}, "local": {"epochs": 2}},
        {"partition": {"name": "pathological", "clients": 6}, "engine": {"name": "stacked", "threads": 2}},
    ],
)
def test_tables_written_out_mean_the_same_config(values, tmp_path):
    config = parse(values)
    assert parse(config.tables()) == config
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(without_none(config.tables())))
    assert read_config(path) == config


# --- what is refused


@pytest.mark.parametrize(
    ("values", "key", "nearest"),
    [
        ({"ronds": 3}, "ronds", "rounds"),
        ({"sed": 3}, "sed", "seed"),
        ({"algoritm": {"name": "fedavg"}}, "algoritm", "algorithm"),
        ({"local": {"learning_steps": 3}}, "local.learning_steps", "local.steps"),
        ({"local": {"batchsize": 3}}, "local.batchsize", "local.batch_size"),
        ({"algorithm": {"name": "fedprox", "m": 1}}, "algorithm.m", "algorithm.mu"),
        ({"algorithm": {"wieghts": "equal"}}, "algorithm.wieghts", "algorithm.weights"),
        ({"partition": {"name": "dirichlet", "alfa": 1.0}}, "partition.alfa", "partition.alpha"),
        ({"data": {"name": "gaussian", "client": 3}}, "data.client", "data.clients"),
        ({"model": {"name": "mlp", "hiden": [3]}}, "model.hiden", "model.hidden"),
        ({"engine": {"name": "loop", "thread": 3}}, "engine.thread", "engine.threads"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(values, key, nearest):
    assert refused(values).startswith(f"unknown key {key!r} (did you mean {nearest!r}?); known here: ")


def test_an_unknown_key_like_no_other_lists_what_is_known():
    message = refused({"xyzzy": 1})
    assert message.startswith("unknown key 'xyzzy'; known here: seed, splits, splitting, rounds, ")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rounds": "ten"}, "rounds = 'ten'"),
        ({"rounds": 2.5}, "rounds = 2.5"),
        ({"rounds": True}, "rounds = True"),
        ({"seed": "1"}, "seed = '1'"),
        ({"seed": 1.0}, "seed = 1.0"),
        ({"seed": {"a": 1}}, "seed = {'a': 1}"),
        ({"activity": "False"}, "activity = 'False'"),
        ({"activity": False}, "activity = False"),
        ({"local": {"lr": "0.1"}}, "local.lr = '0.1'"),
        ({"local": {"lr": True}}, "local.lr = True"),
        ({"local": {"steps": "False"}}, "local.steps = 'False'"),
        ({"local": {"steps": [3]}}, "local.steps = [3]"),
        ({"model": {"name": "mlp", "hidden": 3}}, "model.hidden = 3"),
        ({"model": {"name": "mlp", "hidden": ["3"]}}, "model.hidden = '3'"),
        ({"algorithm": {"name": "fedavg", "weights": "size"}}, "algorithm.weights = 'size'"),
        ({"engine": {"threads": "2"}}, "engine.threads = '2'"),
        ({"splits": [0.5, 0.5]}, "splits"),
        ({"splits": {"train": 1.0}}, "splits"),
        ({"splits": "half"}, "splits = 'half'"),
        ({"local": 3}, "local = 3: must be a table"),
        ({"data": ["digits"]}, "data = ['digits']: must be a table"),
        ({"data": {"name": ["digits"]}}, "data = ['digits'] is unknown"),
        ({"algorithm": {"name": 3}}, "algorithm = 3 is unknown"),
        ({"engine": {"name": 3}}, "engine.name = 3"),
        ({"engine": 3}, "engine = 3: must be a table"),
    ],
)
def test_a_wrong_type_is_refused(values, key):
    assert refused(values).startswith(key)


def test_a_date_is_not_a_number(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("seed = 1979-05-27")
    with pytest.raises(ConfigError, match="seed = '1979-05-27'"):
        read_config(path)


def test_whole_numbers_are_accepted_for_fractions():
    config = parse({"activity": 1, "local": {"lr": 1}, "splits": [1, 0, 0]})
    assert (config.schedule.activity, config.local.lr, config.splits) == (1.0, 1.0, (1.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "rounds = 0: must be at least 1"),
        ({"activity": 0.0}, "activity = 0.0: must be in (0, 1]"),
        ({"activity": 1.5}, "activity = 1.5: must be in (0, 1]"),
        ({"eval_every": -1}, "eval_every = -1: must be at least 0"),
        ({"checkpoint_every": -1}, "checkpoint_every = -1: must be at least 0"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"seed": 2**64}, f"seed = {2**64}: must be at least 0 and below 2^63"),
        ({"local": {"lr": 0.0}}, "local.lr = 0.0: must be above 0"),
        ({"local": {"lr": -1}}, "local.lr = -1.0: must be above 0"),
        ({"local": {"lr": float("nan")}}, "local.lr = nan"),
        ({"local": {"batch_size": -1}}, "local.batch_size = -1: must be at least 1, or 0"),
        ({"local": {"momentum": 1.0}}, "local.momentum = 1.0: must be in [0, 1)"),
        ({"local": {"steps": 0}}, "local.steps = 0: must be at least 1"),
        ({"local": {"epochs": 0}}, "local.epochs = 0: must be at least 1"),
        ({"local": {"steps": 3, "epochs": 1}}, "local.epochs = 1: must be left out where local.steps is given"),
        ({"model": {"name": "mlp", "hidden": [0]}}, "model.hidden = (0,): must be widths of at least 1"),
        ({"engine": {"threads": 0}}, "engine.threads = 0: must be at least 1"),
        ({"engine": {"memory": 0}}, "engine.memory = 0: must be at least 1"),
        ({"engine": {"device": "abacus"}}, "engine.device = 'abacus': "),
    ],
)
def test_a_value_out_of_range_is_refused(values, message):
    assert refused(values).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "fedagv"}, "algorithm = 'fedagv' is unknown (did you mean 'fedavg'?); known: separate, "),
        ({"data": {"name": "digit"}}, "data = 'digit' is unknown (did you mean 'digits'?); known: "),
        ({"partition": "dirichelt"}, "partition = 'dirichelt' is unknown (did you mean 'dirichlet'?); known: "),
        ({"model": "mpl"}, "model = 'mpl' is unknown (did you mean 'mlp'?); known: "),
        ({"engine": "staked"}, "engine = 'staked' is unknown (did you mean 'stacked'?); known: auto, "),
        ({"partition": {"clients": 3}}, "[partition] has no name: choose one of "),
    ],
)
def test_an_unknown_name_suggests_the_nearest(values, message):
    assert refused(values).startswith(message)


# --- files and overrides


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('data = "digits"\n[local]\nlr = 0.5\n[algorithm]\nname = "fedprox"\nmu = 0.7\n')
    return path


def test_overrides_change_one_key(file):
    config = read_config(file, ["local.steps=40", "seed = 3", "model.name=mlp", "model.hidden=[5, 6]"])
    assert config.local == Local(lr=0.5, steps=40) and config.seed == 3
    assert config.algorithm == FedProx(mu=0.7) and config.model == MLP(hidden=(5, 6))


def test_another_name_drops_the_other_names_keys(file):
    assert read_config(file, ["algorithm.name=fedavg"]).algorithm == FedAvg()
    assert read_config(file, ["algorithm=fedavg"]).algorithm == FedAvg()
    assert read_config(file, ["algorithm.name=fedprox"]).algorithm == FedProx(mu=0.7)
    config = read_config(file, ["algorithm.name=fedavg", "algorithm.weights=equal"])
    assert config.algorithm == FedAvg(weights="equal")


def test_overrides_make_tables_of_names(file):
    config = read_config(file, ["engine=loop", "engine.threads=1", "data.name=digits", "partition.name=iid"])
    assert config.engine == EngineSettings("loop", 1) and config.data == Digits() and config.partition == IID()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("local.steps", "-s 'local.steps': must be key=value, such as local.steps=40"),
        ("=3", "-s '=3': must be key=value"),
        ("local.lr.deep=3", "-s 'local.lr.deep=3': lr is not a table"),
        ("local.step=3", "unknown key 'local.step' (did you mean 'local.steps'?)"),
        ("local.lr=fast", "local.lr = 'fast': "),
        ("rounds=", "rounds = '': "),
    ],
)
def test_bad_overrides_are_refused(file, override, message):
    with pytest.raises(ConfigError) as caught:
        read_config(file, [override])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("content", [b"rounds = ", b"rounds: 3", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.toml is not a readable TOML file: "):
        read_config(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file .*nowhere\.toml"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="not a readable TOML file"):
        read_config(tmp_path)


def test_a_warm_start_begins_with_saved_weights(tmp_path):
    from safetensors.torch import load_file

    from personafl.jobs import train_config

    first = train_config(parse({"rounds": 2}), tmp_path / "first")
    saved = tmp_path / "first" / "models" / "global.safetensors"
    warm = {"rounds": 1, "model": {"name": "mlp", "weights": str(saved)}, "local": {"lr": 1e-12}}
    second = train_config(parse(warm), tmp_path / "second")
    after = load_file(second.path / "models" / "global.safetensors")
    for name, value in load_file(saved).items():
        assert (after[name] - value).abs().max() < 1e-6, name
    assert second.manifest["model"]["weights"] == str(saved)
    assert first.manifest["model"] == {"name": "mlp", "hidden": [100], "dropout": 0.0}


@pytest.mark.parametrize("what", ["missing", "not weights", "another model"])
def test_weights_that_do_not_fit_are_refused(tmp_path, what):
    import torch
    from safetensors.torch import save_file

    from personafl.jobs import train_config

    path = tmp_path / "weights.safetensors"
    if what == "not weights":
        path.write_bytes(b"nothing")
    elif what == "another model":
        save_file({"0.weight": torch.zeros(2, 2)}, path)
    config = parse({"rounds": 1, "model": {"name": "mclr", "weights": str(path)}})
    with pytest.raises(ConfigError, match=r"model\.weights = "):
        train_config(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
