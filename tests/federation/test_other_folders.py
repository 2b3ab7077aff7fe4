"""Data folders as PFLlib, LEAF, FL-bench and FLamby write them: every sample arrives, in its split, at its client."""

import csv
import json
import pickle

import numpy as np
import pytest

from personafl import Federation
from personafl.config import parse
from personafl.data.build import build
from personafl.errors import DataError, PersonaflError

REST = {"rounds": 1, "local": {"lr": 0.1, "steps": 1}, "algorithm": {"name": "fedavg"}}


class Evil:
    """A pickle that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def samples(rng, count, shape=(1, 4, 4), classes=3):
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, classes, count)


def write_pfllib(folder, clients=3, shape=(1, 4, 4)):
    """As PFLlib's save_file: np.savez_compressed(f, data={"x": …, "y": …}), and config.json."""
    rng = np.random.default_rng(0)
    written = {}
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for client in range(clients):
            x, y = samples(rng, 6 + client, shape)
            written[str(client), split] = x, y
            with (folder / split / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": y})
    config = {"num_clients": clients, "num_classes": 5, "non_iid": True, "balance": False, "partition": "dir",
              "Size of samples for labels in clients": [[[0, 3]]], "alpha": 0.1, "batch_size": 10}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return written


def write_leaf(folder, x_of, y_of):
    """As LEAF's split_data.py by sample: two files, in which a user who was left out has empty lists."""
    written = {}
    for split, count in (("train", 4), ("test", 2)):
        (folder / split).mkdir(parents=True)
        for part, users in enumerate((["f0001_41", "f0002_12"], ["f0003_07"])):
            held = {user: {"x": x_of(user, split, count), "y": y_of(user, split, count)} for user in users}
            written |= {(user, split): (pair["x"], pair["y"]) for user, pair in held.items()}
            content = {
                "users": users, "num_samples": [count] * len(users), "user_data": {**held, "alone": {"x": [], "y": []}},
            }  # fmt: skip
            name = f"all_data_{part}_niid_0_keep_0_{split}_9.json"
            (folder / split / name).write_text(json.dumps(content))
    return written


def write_flbench(folder, rows, names=("data.npy", "targets.npy"), targets_shape=(-1,), shape=(5,)):
    """As FL-bench's generate_data.py: the partition is pickled, the samples of all clients are two arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = samples(np.random.default_rng(1), 30, shape)
    for name, array in zip(names, (x, y.reshape(targets_shape)), strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        np.save(folder / name, array)
    clients = list(range(len(rows)))
    partition = {"separation": {"train": clients, "val": clients, "test": clients, "total": len(rows)},
                 "data_indices": rows, "val": []}  # fmt: skip
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
    return x, y


def write_heart(folder):
    """As the UCI files that FLamby downloads: no header, 14 columns, ? where something is missing."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    rows = {}
    for center, count in (("va", 40), ("cleveland", 30)):
        rows[center] = [
            [50 + m, m % 2, 1 + m % 4, 120, 200 + m, 0, m % 3, 140, 0, 1.5, "?", "?", "?", int(rng.integers(0, 5))]
            for m in range(count)
        ]
        rows[center][3][3] = "?"  # a patient who is left out
        with (folder / f"processed.{center}.data").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows[center])
    return rows


def write_tcga(folder):
    (folder / "dataset_creation_scripts").mkdir(parents=True)
    rng = np.random.default_rng(3)
    rows = [[f"TCGA-{m}", *rng.integers(0, 9, 39).tolist(), float(m % 2), 10.0 * m] for m in range(12)]
    header = ["pid", "age_at_index", *(f"column, {m}" for m in range(38)), "E", "T"]
    with (folder / "brca.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    parts = [("train", f"train_{m % 2}") if m < 8 else ("test", f"test_{m % 2}") for m in range(12)]
    with (folder / "dataset_creation_scripts" / "train_test_split.csv").open("w", newline="") as file:
        folds = [[row[0], *part] for row, part in zip(rows, parts, strict=True)]
        csv.writer(file).writerows([["pid", "fold", "fold2"], *folds])
    return rows


def assert_holds(fed, written):
    assert {client for client, _ in written} == set(fed.ids)
    for (client, split), (x, y) in written.items():
        found_x, found_y = fed.client(client)[split]
        assert np.array_equal(found_x.numpy(), np.asarray(x, np.float32)), (client, split)
        assert np.array_equal(found_y.numpy(), y), (client, split)


def test_pfllib(tmp_path):
    written = write_pfllib(tmp_path / "MNIST")
    fed = Federation.from_folder(tmp_path / "MNIST", format="pfllib")
    assert_holds(fed, written)
    assert fed.ids == ("0", "1", "2") and fed.classes == 5 and fed.name == "MNIST"
    assert fed.sizes("val").tolist() == [0, 0, 0]


def test_leaf_with_numbers(tmp_path):
    rng = np.random.default_rng(0)
    written = write_leaf(
        tmp_path / "femnist" / "data",
        lambda user, split, count: rng.random((count, 16)).round(3).tolist(),
        lambda user, split, count: rng.integers(0, 62, count).tolist(),
    )
    for folder in (tmp_path / "femnist", tmp_path / "femnist" / "data"):
        assert_holds(Federation.from_folder(folder, format="leaf"), written)


def test_leaf_with_letters(tmp_path):
    written = write_leaf(
        tmp_path / "data",
        lambda user, split, count: [f"to be or {letter}" for letter in "abcd"[:count]],
        lambda user, split, count: list("?!no"[:count]),
    )
    fed = Federation.from_folder(tmp_path / "data", format="leaf")
    letters = fed.class_names
    for (user, split), (texts, following) in written.items():
        x, y = fed.client(user)[split]
        assert ["".join(letters[place] for place in row) for row in x.tolist()] == texts
        assert [letters[place] for place in y.tolist()] == following


@pytest.mark.parametrize("names", [("data.npy", "targets.npy"), ("raw/xdata.npy", "raw/ydata.npy")])
def test_flbench(tmp_path, names):
    order = np.random.default_rng(5).permutation(30).astype(np.int32)
    rows = [
        {"train": order[:8], "val": order[8:10], "test": order[10:13]},
        {"train": list(range(5)), "test": list(range(5, 8))},  # femnist has lists, and no val
        {"train": order[13:20], "val": np.array([], np.int64), "test": order[20:]},
    ]
    x, y = write_flbench(tmp_path, rows, names, (-1, 1) if "raw" in names[0] else (-1,))
    fed = Federation.from_folder(tmp_path, format="flbench")
    written = {(str(m), split): (x[row], y[row]) for m, of in enumerate(rows) for split, row in of.items() if len(row)}
    assert_holds(fed, written)


def test_flamby_heart_disease(tmp_path):
    rows = write_heart(tmp_path / "heart")
    fed = Federation.from_folder(tmp_path / "heart", format="flamby")
    assert fed.ids == ("cleveland", "va") and fed.classes == 2 and fed.x.shape[1] == 13
    assert fed.sizes("train").tolist() == [19, 25] and fed.sizes("test").tolist() == [10, 14]  # 29 and 39, by 0.66
    for center, patients in rows.items():
        label = {row[0]: int(row[-1] > 0) for row in patients}
        pain, ecg = ({row[0]: row[place] for row in patients} for place in (2, 6))
        ages = []
        for x, y in (fed.client(center)[split] for split in ("train", "test")):
            for row, disease in zip(x.tolist(), y.tolist(), strict=True):
                age = int(row[0])
                ages.append(age)
                assert disease == label[age]
                assert row[8:] == [pain[age] == 2, pain[age] == 3, pain[age] == 4, ecg[age] == 1, ecg[age] == 2]
        assert sorted(ages) == sorted(row[0] for row in patients if row[3] != "?")


def test_flamby_tcga_brca(tmp_path):
    rows = write_tcga(tmp_path)
    fed = Federation.from_folder(tmp_path, format="flamby", label_type="numbers")
    written = {}
    for center in (0, 1):
        for split, places in (("train", range(center, 8, 2)), ("test", range(8 + center, 12, 2))):
            chosen = np.array([rows[m][1:] for m in places], np.float32)
            written[str(center), split] = chosen[:, :39], chosen[:, [40, 39]]  # time, event
    assert_holds(fed, written)


@pytest.mark.parametrize(("format", "write"), [
    ("pfllib", write_pfllib), ("flamby", write_heart),
    ("flbench", lambda folder: write_flbench(folder, [{"train": [0, 1], "test": [2]}])),
    ("leaf", lambda folder: write_leaf(folder, lambda *_: [[0.5], [1.0]], lambda *_: [0, 1])),
])  # fmt: skip
def test_a_config_names_the_format(tmp_path, format, write):
    write(tmp_path / "there")
    config = parse({"data": {"name": "files", "path": str(tmp_path / "there"), "format": format}, **REST})
    fed = build(config.data, config.partition, seed=0)
    assert fed.fingerprint == Federation.from_folder(tmp_path / "there", format=format).fingerprint


def test_nothing_in_a_folder_is_executed(tmp_path):
    write_pfllib(tmp_path / "a")
    np.savez(tmp_path / "a" / "train" / "1.npz", data=np.array({"x": Evil(tmp_path / "written"), "y": 0}, object))
    with pytest.raises(DataError, match=r"train/1.npz: data asks for .*open, which no array needs"):
        Federation.from_folder(tmp_path / "a", format="pfllib")
    write_flbench(tmp_path / "b", [{"train": Evil(tmp_path / "written")}])
    with pytest.raises(DataError, match=r"partition.pkl asks for .*open"):
        Federation.from_folder(tmp_path / "b", format="flbench")
    assert not (tmp_path / "written").exists()


def broken(write, change):
    def make(folder):
        write(folder)
        change(folder)

    return make


@pytest.mark.parametrize(("format", "make", "message"), [
    ("pfllib", lambda folder: folder.mkdir(), r"has no train/0.npz; give dataset/NAME"),
    ("pfllib", broken(write_pfllib, lambda f: (f / "train/2.npz").unlink()), r"test has .*2.*nothing in train"),
    ("pfllib", broken(write_pfllib, lambda f: (f / "config.json").write_text('{"num_classes": "x"}')),
     r"num_classes = x"),
    ("pfllib", broken(write_pfllib, lambda f: np.savez(f / "train/0.npz", x=np.zeros(3))),
     r"has no array 'data'; found x"),
    ("pfllib", broken(write_pfllib, lambda f: np.savez(f / "train/0.npz", data=np.zeros(3))),
     r"expected one pickled dict"),
    ("pfllib", broken(write_pfllib, lambda f: (f / "train/0.npz").write_bytes(b"PK")), r"train/0.npz"),
    ("leaf", lambda folder: folder.mkdir(), r"has no train/\*.json; give data/NAME/data"),
    ("leaf", lambda f: write_leaf(f, lambda *_: ["a.png", "b.png"], lambda *_: [0, 1]),
     r"has not a letter for each text"),
    ("leaf", lambda f: write_leaf(f, lambda *_: [["id", "a tweet"]], lambda *_: [1]), r"holds lists such as .*a tweet"),
    ("flbench", lambda f: write_flbench(f, [{"train": [], "test": [3]}]), r"split was by user; make it by sample"),
    ("flbench", lambda f: write_flbench(f, [{"train": [0, 30]}]), r"has row 30, and there are 30 samples"),
    ("flbench", broken(lambda f: write_flbench(f, [{"train": [0]}]), lambda f: (f / "data.npy").unlink()),
     r"save its dataset.data and dataset.targets"),
    ("flamby", lambda folder: folder.mkdir(), r"neither processed.*from_datasets"),
    ("flamby", broken(write_heart, lambda f: (f / "processed.va.data").write_text("1,2,3\n")), r"a row has 3 columns"),
    ("flamby", broken(write_tcga, lambda f: (f / "brca.csv").write_text("pid,E,T\n")), r"has not the columns pid, 39"),
    ("nonsense", lambda folder: folder.mkdir(), r"format = 'nonsense' must be npz, pfllib, leaf, flbench or flamby"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path, format, make, message):
    make(tmp_path / "there")
    with pytest.raises(PersonaflError, match=message) as caught:
        Federation.from_folder(tmp_path / "there", format=format)
    assert "\n" not in str(caught.value)
