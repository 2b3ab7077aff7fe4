"""Facts about mnist, fmnist and letters: files in their true format are read, and nothing else is."""

import gzip
import io
import os
import pickle
import struct
import time
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from personafl.config import parse
from personafl.data import FMNIST, IID, MNIST, Lognormal, Natural, PowerLaw, build
from personafl.data import readers as data_files
from personafl.data.images import FMNIST_FIRST, IDX_FILES, MNIST_FIRST
from personafl.data.readers import read_idx
from personafl.errors import ConfigError, DataError
from personafl.federation.npz import read_npz
from personafl.federation.overview import label_counts
from personafl_papers.data.letters import Letters
from personafl_papers.partitions.practical import Practical

TRAIN, TEST = 40, 20


def idx(array, code=8):
    """An idx file, byte for byte: two zeros, the type, the number of dimensions, big-endian sizes, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def read_images(file):
    return read_idx(file, (None, 28, 28), most=70_000)


def small(seed=0):
    """Images and labels in the order of IDX_FILES."""
    rng = np.random.default_rng(seed)
    arrays = []
    for size in (TRAIN, TEST):
        arrays += [rng.integers(0, 256, (size, 28, 28), np.uint8), rng.permutation(size).astype(np.uint8) % 10]
    return arrays


def write_idx(place, arrays, packed=()):
    place.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX_FILES, arrays, strict=True):
        if name in packed:
            (place / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (place / name).write_bytes(idx(array))


def write_npz(file, arrays):
    np.savez_compressed(file, **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))


def assert_pool(samples, arrays):
    pool = np.concatenate([arrays[0], arrays[2]])
    assert samples.x.shape == (TRAIN + TEST, 1, 28, 28) and samples.x.dtype == np.float32
    assert np.array_equal(np.rint(samples.x[:, 0] * 255), pool)
    assert samples.y.dtype == np.int64 and samples.y.tolist() == [*arrays[1], *arrays[3]]
    assert samples.classes == 10


@pytest.mark.parametrize("packed", [(), IDX_FILES, IDX_FILES[:1]], ids=["plain", "gzip", "mixed"])
@pytest.mark.parametrize(
    "source, place",
    [
        (MNIST, "."),
        (MNIST, "MNIST/raw"),
        (MNIST, "mnist"),
        (FMNIST, "."),
        (FMNIST, "FashionMNIST/raw"),
        (FMNIST, "fashion_mnist"),
    ],
)
def test_idx_files_are_found_where_people_have_them(folder, source, place, packed):
    arrays = small()
    write_idx(folder / place, arrays, packed)
    assert_pool(source(normalize="unit").load(0), arrays)


@pytest.mark.parametrize("source, file", [(MNIST, "mnist.npz"), (FMNIST, "fashion_mnist.npz")])
def test_npz_files_are_read(folder, source, file):
    arrays = small()
    write_npz(folder / file, arrays)
    assert_pool(source(normalize="unit").load(0), arrays)


def test_the_cache_is_looked_in_without_and_after_the_users_directory(folder, monkeypatch):
    cache = folder.parent / "cache"
    cached, own = small(1), small(2)
    write_idx(cache / "mnist", cached)
    assert_pool(MNIST("unit").load(0), cached)
    write_npz(folder / "mnist.npz", own)
    assert_pool(MNIST("unit").load(0), own)
    monkeypatch.delenv("PERSONAFL_DATA")
    assert_pool(MNIST("unit").load(0), cached)


def test_a_file_is_unpacked_by_its_content_not_by_its_name(folder):
    images = small()[0]
    (folder / "a.gz").write_bytes(idx(images))
    (folder / "a").write_bytes(gzip.compress(idx(images)))
    assert np.array_equal(read_images(folder / "a.gz"), read_images(folder / "a"))


def test_what_is_not_there_is_asked_for_by_name_and_place(folder, monkeypatch):
    with pytest.raises(DataError, match=r"data mnist is not in .*put mnist\.npz or the four files train-images-idx3"):
        MNIST().load(0)
    with pytest.raises(DataError, match=rf"fashion_mnist\.npz or .*FashionMNIST/raw.* into {folder}; or download http"):
        FMNIST().load(0)
    with pytest.raises(DataError, match=rf"put letter\.data\.gz of http.* or ocr_letters\.npz .* into {folder}$"):
        Letters().load(0)
    write_idx(folder / "MNIST" / "raw", small())
    with pytest.raises(DataError, match=r"mnist with partition natural .*put mnist_writers\.npz"):
        build(MNIST(), Natural())
    (folder / "MNIST" / "raw" / IDX_FILES[3]).unlink()
    with pytest.raises(DataError, match=rf"MNIST/raw lacks {IDX_FILES[3]}\)"):
        MNIST().load(0)
    monkeypatch.delenv("PERSONAFL_DATA")
    with pytest.raises(DataError, match="that --data-dir or the environment variable PERSONAFL_DATA names"):
        Letters().load(0)
    monkeypatch.setenv("PERSONAFL_DATA", str(folder / "nowhere"))
    with pytest.raises(DataError, match=r"PERSONAFL_DATA names .*nowhere, which is not a directory"):
        Letters().load(0)


def test_mnist_and_fmnist_are_told_apart_though_their_files_have_the_same_names(folder):
    for first, wrong, right in ((MNIST_FIRST, FMNIST, MNIST), (FMNIST_FIRST, MNIST, FMNIST)):
        arrays = small()
        arrays[1][: len(first)] = first
        write_idx(folder, arrays)
        right().load(0)
        with pytest.raises(DataError, match=f"is of {right.name}, not of {wrong.name}"):
            wrong().load(0)


IMAGES = small()[0]
LABELS = small()[1]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is not an idx file"),
        (b"\0\0", "is not an idx file"),
        (b"PK\3\4" + idx(IMAGES), "is not an idx file: it starts with the bytes 50 4b"),
        (b"\0\0\7\3" + idx(IMAGES)[4:], "is not an idx file: it starts with the bytes 00 00 07 03"),
        (idx(IMAGES.astype(">f4"), code=13), "holds float32 values, expected uint8"),
        (idx(IMAGES)[:9], "ends inside its header"),
        (idx(LABELS), r"shape \(40,\), expected \(N, 28, 28\)"),
        (idx(IMAGES[:, :27]), r"shape \(40, 27, 28\), expected \(N, 28, 28\)"),
        (idx(IMAGES[:0]), r"shape \(0, 28, 28\)"),
        (idx(IMAGES)[:-1], "is truncated: its header promises 31360 bytes"),
        (idx(IMAGES) + b"\0", "is longer than the 31360 bytes"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 28, 28) + b"\0" * 99, "is truncated: its header promises 336"),
        (b"\0\0\x08\xff" + b"\xff" * 1020, "shape .*expected"),
    ],
)
def test_a_malformed_idx_file_is_named_and_takes_no_memory(folder, content, said, packed):
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as caught:
        read_images(file)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-9],  # the checksum is cut
        lambda packed: packed[:-8] + bytes(8),  # the checksum is wrong
        lambda packed: packed[:10] + b"\xff" * 50 + packed[60:],
        lambda packed: packed[:3],
    ],
)
def test_a_damaged_gzip_file_is_named(folder, damage):
    file = folder / "labels.gz"
    file.write_bytes(damage(gzip.compress(idx(IMAGES))))
    with pytest.raises(DataError, match=f"{file}"):
        read_images(file)


def test_a_gzip_bomb_is_not_unpacked(folder):
    file = folder / "bomb.gz"
    file.write_bytes(gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 5, 28, 28) + bytes(100_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="longer than the 3920 bytes"):
        read_images(file)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_images_and_labels_that_do_not_belong_together_are_refused(folder):
    train_x, train_y, test_x, test_y = small()
    write_idx(folder, (train_x, train_y[:-1], test_x, test_y))
    with pytest.raises(DataError, match=r"images-idx3-ubyte has 40 images and .*labels-idx1-ubyte has 39 labels"):
        MNIST().load(0)
    test_y[7] = 10
    write_idx(folder, (train_x, train_y, test_x, test_y))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: label 10 of sample 7 must be in 0 to 9"):
        MNIST().load(0)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def huge(shape):
    """An npy header that promises this shape, and a few bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(99)


GOOD = np.ones((3, 16), np.uint8)


@pytest.mark.parametrize(
    "x, said",
    [
        (npy(GOOD.astype(float)), "x holds float64 values, expected unsigned integers"),
        (npy(GOOD[:, :15]), r"x has shape \(3, 15\), expected \(N, 16\)"),
        (npy(GOOD[:0]), r"x has shape \(0, 16\)"),
        (npy(GOOD)[:-1], "x is .* bytes long and its header promises"),
        (huge((10**12, 16)), "its header promises 16000000000"),
        (huge((-5, 16)), r"x has shape \(-5, 16\)"),
        (b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': ((((  ", "cannot read"),
        (b"\x93NUMPY\x09\x00" + npy(GOOD)[8:], "unknown npy version"),
        (b"nothing", "cannot read"),
        (b"", "cannot read"),
        (npy(np.array([Bomb()] * 3, object)), "x holds object values"),
        (pickle.dumps(Bomb()), "cannot read"),
    ],
)
def test_a_malformed_npz_is_named_executes_nothing_and_takes_no_memory(folder, monkeypatch, x, said):
    monkeypatch.chdir(folder)
    file = folder / "ocr_letters.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy(np.zeros(3, np.uint8)))
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as caught:
        Letters().load(0)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert str(file) in str(caught.value)
    assert [path.name for path in folder.iterdir()] == ["ocr_letters.npz"]


def test_a_file_that_is_no_npz_is_named(folder):
    file = folder / "ocr_letters.npz"
    whole = io.BytesIO()
    np.savez(whole, x=GOOD, y=np.zeros(3, np.uint8))
    for content in (b"", b"not a zip", whole.getvalue()[:200], npy(GOOD), pickle.dumps(Bomb())):
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"cannot read {file}"):
            Letters().load(0)
    np.savez(file, a=GOOD)
    with pytest.raises(DataError, match="has no array 'x'; expected x, y, found a"):
        Letters().load(0)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", npy(GOOD))
        archive.writestr("y.npy", npy(GOOD))
    with pytest.raises(DataError, match="compressed in an unusual way; pack it with deflate"):
        Letters().load(0)


def test_an_entry_that_hides_behind_another_is_not_read(folder):
    """numpy.load would take the entry `x` for the array x, though `x.npy` is the one that was checked."""
    file = folder / "hidden.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", npy(GOOD))
        archive.writestr("x", huge((10**12, 16)))
    assert np.array_equal(read_npz(file, {"x": (None, 16)})["x"], GOOD)


def test_fedprox_normalization_standardizes_each_pixel_over_the_pool(folder):
    arrays = small()
    arrays[0][:, 0, 0] = arrays[2][:, 0, 0] = 7  # a pixel that never changes
    write_npz(folder / "mnist.npz", arrays)
    pool = np.concatenate([arrays[0], arrays[2]]).astype(float)
    expected = (pool - pool.mean(axis=0)) / (pool.std(axis=0) + 0.001)
    assert np.array_equal(MNIST("unit").load(0).x[:, 0], (pool / 255).astype(np.float32))
    x = MNIST().load(0).x
    assert np.allclose(x[:, 0], expected, atol=1e-5) and not x[:, 0, 0, 0].any()


def test_a_second_load_maps_what_the_first_prepared(folder):
    arrays = small()
    file = folder / "mnist.npz"
    write_npz(file, arrays)
    MNIST("unit").load(0)
    stat = file.stat()
    file.write_bytes(bytes(stat.st_size))  # destroyed, but of the same size and time
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    samples = MNIST("unit").load(0)
    assert_pool(samples, arrays)
    assert not samples.x.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that must not be written to
        fed = build(MNIST("unit"), IID(3), seed=0)
    fed.x[0] = 7
    assert samples.x.max() <= 1
    os.utime(file, ns=(0, 0))
    with pytest.raises(DataError, match=f"cannot read {file}"):
        MNIST("unit").load(0)


def test_letters_are_unpacked_bit_by_bit(folder):
    pictures = np.random.default_rng(0).integers(0, 2, (30, 16, 8), np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 26
    packed = np.packbits(pictures.reshape(30, 128), axis=1)
    np.savez_compressed(folder / "ocr_letters.npz", x=packed, y=labels, fold=labels)
    every, few = Letters().load(0), Letters(classes=10).load(0)
    assert np.array_equal(every.x[:, 0], pictures) and every.x.dtype == np.float32 and every.classes == 26
    assert np.array_equal(few.x, every.x[labels < 10]) and few.y.max() == 9 and few.classes == 10
    np.savez(folder / "ocr_letters.npz", x=packed, y=labels[:-1])
    with pytest.raises(DataError, match="x has 30 letters and y has 29 labels"):
        Letters().load(0)


def test_writers_are_clients_only_if_asked_for(folder):
    write_npz(folder / "mnist.npz", small())
    writers = np.array([7] * 25 + [12] * 15, np.int16), np.array([101] * TEST, np.int16)
    np.savez(folder / "mnist_writers.npz", writer_train=writers[0], writer_test=writers[1])
    natural = build(MNIST(), Natural())
    assert natural.ids == ("writer-7", "writer-12", "writer-101")
    assert (natural.sizes("train") + natural.sizes("test")).tolist() == [25, 15, 20]
    assert build(MNIST(), Natural(least=20)).ids == ("writer-7", "writer-101")
    with pytest.raises(ConfigError, match="'mnist' is a pool of samples without clients"):
        build(MNIST())
    np.savez(folder / "mnist_writers.npz", writer_train=writers[0][1:], writer_test=writers[1])
    with pytest.raises(DataError, match=r"mnist_writers\.npz names the writers of 59 images, and MNIST here has 60"):
        build(MNIST(), Natural())


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: MNIST(normalize="none"), "data mnist: normalize = 'none' must be fedprox or unit"),
        (lambda: FMNIST(normalize="none"), "data fmnist: normalize = 'none'"),
        (lambda: Letters(classes=1), "classes = 1 must be in 2 to 26"),
        (lambda: Letters(classes=27), "classes = 27"),
        (lambda: parse({"data": {"name": "mnist", "normalize": "no"}}), "data.normalize = 'no'"),
    ],
)
def test_settings_out_of_range_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_configs_name_the_papers_settings():
    fedprox = parse({"data": "mnist", "partition": "powerlaw"})
    assert fedprox.data == MNIST() and fedprox.partition == PowerLaw() and fedprox.model.name == "mclr"
    letters = parse({"data": {"name": "letters", "classes": 10}, "partition": "lognormal"})
    assert letters.data == Letters(10) and letters.partition == Lognormal() and letters.model.name == "mclr"
    groups = parse({"data": "fmnist", "partition": {"name": "practical", "groups": "fmnist"}})
    assert groups.partition == Practical("fmnist") and groups.model.name == "mlp"
    own = parse({"data": "fmnist", "partition": {"name": "practical", "groups": [[0], [1, 2]], "clients": [2, 1],
                 "samples": [9, 8]}})  # fmt: skip
    assert own.partition == Practical(((0,), (1, 2)), (2, 1), (9, 8))
    assert parse(groups.tables()) == groups and parse(own.tables()) == own
    assert parse({"data": "mnist", "partition": {"name": "natural", "least": 9}}).partition == Natural(least=9)


# The real data, where it is.

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = Path(os.environ.get("PERSONAFL_DATA") or SHARED)


@pytest.fixture
def real(monkeypatch):
    def need(file):
        if not (REAL / file).is_file():
            pytest.skip(f"{file} is neither in the directory of PERSONAFL_DATA nor in ../shared/data")
        monkeypatch.setenv("PERSONAFL_DATA", str(REAL))

    return need


def test_the_fedprox_mnist_federation_has_the_published_statistics_and_builds_in_3_seconds(real):
    real("mnist.npz")
    start = time.process_time()  # not the clock: other processes must not make this test fail
    fed = build(MNIST(), PowerLaw(), seed=0)
    assert time.process_time() - start < 3.0
    start = time.process_time()
    assert len(MNIST().load(0).y) == 70_000
    assert time.process_time() - start < 0.2  # it is in the cache by now
    sizes = fed.sizes("train") + fed.sizes("test")
    assert len(fed) == 1000 and sizes.mean() == pytest.approx(69, abs=0.5)
    assert ((label_counts(fed) > 0).sum(axis=1) == 2).all()
    assert fed.x.shape[1:] == (1, 28, 28) and (fed.sizes("val") == 0).all()
    assert abs(float(fed.x.mean())) < 0.01 and np.abs(fed.sizes("test") - sizes / 10).max() <= 1


def test_mnist_is_mnist(real):
    real("mnist.npz")
    y = MNIST("unit").load(0).y
    assert tuple(y[: len(MNIST_FIRST)]) == MNIST_FIRST
    assert np.bincount(y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


def test_the_writers_of_mnist(real):
    real("mnist_writers.npz")
    real("mnist.npz")
    fed = build(MNIST("unit"), Natural())
    assert len(fed) == 539 + 297 and len(fed.x) == 70_000


def test_fashion_mnist_in_three_groups(real):
    real("fashion_mnist.npz")
    fed = build(FMNIST(), Practical("fmnist"), seed=0)
    assert fed.groups == ("tops",) * 20 + ("shoes",) * 20 + ("other",) * 20
    assert (fed.bounds[:, 3] - fed.bounds[:, 0]).tolist() == [1000] * 20 + [700] * 20 + [400] * 20
    y = np.concatenate([labels for _, labels in fed.client("client-20").values()])
    assert np.isin(y, (5, 7, 9)).mean() == 0.8
    assert float(fed.x.min()) == 0 and float(fed.x.max()) == 1
    assert tuple(FMNIST().load(0).y[: len(FMNIST_FIRST)]) == FMNIST_FIRST


def test_letters_a_to_j_for_200_clients(real):
    real("ocr_letters.npz")
    assert len(Letters().load(0).y) == 52_152
    fed = build(Letters(classes=10), Lognormal(), seed=0)
    assert len(fed) == 200 and fed.classes == 10 and set(torch.unique(fed.x).tolist()) == {0.0, 1.0}
    assert ((label_counts(fed) > 0).sum(axis=1) == 5).all()
    assert len(fed.notes) == 1 and "class 9 (189 of " in fed.notes[0]


def test_the_variable_is_the_one_that_the_documentation_names():
    assert data_files.VARIABLE == "PERSONAFL_DATA"
