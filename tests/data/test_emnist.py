"""Facts about emnist: the official .zip and the files in it are read, upright, and nothing else is."""

import gzip
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import pytest

from personafl.config import parse
from personafl.data import EMNIST, IID, build
from personafl.data.readers import read_zipped_idx
from personafl.errors import ConfigError, DataError

SIZES = {"train": 70, "test": 35}
COUNTS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def idx(array):
    """An idx file, byte for byte: two zeros, the type, the number of dimensions, big-endian sizes, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def small(split):
    """Upright images and labels from 0 of a split, and its four files by their names."""
    rng = np.random.default_rng(0)
    images, labels, files = [], [], {}
    for part, size in SIZES.items():
        x = rng.integers(0, 256, (size, 28, 28), np.uint8)
        y = rng.permutation(size).astype(np.uint8) % COUNTS[split]
        images.append(x)
        labels.append(y)
        on_their_side = np.ascontiguousarray(x.transpose(0, 2, 1))
        files[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx(on_their_side)
        files[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx(y + (split == "letters"))
    return np.concatenate(images), np.concatenate(labels), files


def write_zip(file, files, more=None):
    """The .zip as NIST packs it: a folder gzip with a .gz a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (more or {}).items():
            archive.writestr(name, content)
        archive.writestr("gzip/", b"")
        for name, content in files.items():
            archive.writestr(f"gzip/{name}.gz", gzip.compress(content))


def assert_pool(samples, images, labels):
    assert samples.x.shape == (len(labels), 1, 28, 28) and samples.x.dtype == np.float32
    assert np.array_equal(np.rint(samples.x[:, 0] * 255), images)
    assert samples.y.dtype == np.int64 and samples.y.tolist() == labels.tolist()


@pytest.mark.parametrize("split", COUNTS)
def test_the_official_zip_is_read_without_unpacking_it(folder, split):
    images, labels, files = small(split)
    write_zip(folder / "gzip.zip", files)
    samples = EMNIST(split).load(0)
    assert_pool(samples, images, labels)
    assert samples.classes == COUNTS[split]
    assert [path.name for path in folder.rglob("*")] == ["gzip.zip"]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("place", [".", "EMNIST/raw", "emnist", "gzip"])
def test_the_files_are_found_where_people_have_them(folder, place, packed):
    images, labels, files = small("byclass")
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = folder / place / (f"{name}.gz" if packed else name)
        file.write_bytes(gzip.compress(content) if packed else content)
    assert_pool(EMNIST().load(0), images, labels)


@pytest.mark.parametrize("place", ["EMNIST/raw/gzip.zip", "emnist/gzip.zip", "emnist.zip"])
def test_the_zip_is_found_where_people_have_it(folder, place):
    images, labels, files = small("digits")
    write_zip(folder / place, files)
    assert_pool(EMNIST("digits").load(0), images, labels)


def test_fedprox_has_the_small_letters_a_to_j(folder):
    images, labels, files = small("byclass")
    write_zip(folder / "gzip.zip", files)
    kept = (labels >= 36) & (labels <= 45)
    samples = EMNIST(classes="abcdefghij").load(0)
    assert_pool(samples, images[kept], labels[kept].astype(int) - 36)
    assert samples.classes == 10
    few = EMNIST(classes="z0A").load(0)
    assert few.classes == 3
    assert few.y.tolist() == [{61: 0, 0: 1, 10: 2}[y] for y in labels.tolist() if y in (61, 0, 10)]
    fed = build(EMNIST(classes="abcdefghij"), IID(2))
    assert fed.classes == 10 and len(fed.x) == kept.sum() and fed.x.shape[1:] == (1, 28, 28)


def test_the_characters_of_each_split():
    names = {split: EMNIST(split)._kept for split in COUNTS}
    assert names["byclass"] == digits + ascii_uppercase + ascii_lowercase
    # Where a small letter looks like its capital the two are one class: c i j k l m o p s u v w x y z.
    merged = "".join(c for c in names["byclass"] if c not in "cijklmopsuvwxyz")
    assert names["bymerge"] == names["balanced"] == merged
    assert {split: len(found) for split, found in names.items()} == COUNTS


def test_normalization_is_over_what_is_kept(folder):
    images, labels, files = small("byclass")
    write_zip(folder / "gzip.zip", files)
    pool = images[labels < 10].astype(float)
    expected = (pool - pool.mean(axis=0)) / (pool.std(axis=0) + 0.001)
    found = EMNIST(normalize="fedprox", classes="0123456789").load(0)
    assert np.allclose(found.x[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: EMNIST(split="by_class"), "split = 'by_class' must be byclass, bymerge, balanced"),
        (lambda: EMNIST(normalize="no"), "data emnist: normalize = 'no'"),
        (lambda: EMNIST(classes="a"), "classes = 'a' must be two or more different characters of 0123"),
        (lambda: EMNIST(classes="aba"), "classes = 'aba'"),
        (lambda: EMNIST(classes=""), "classes = ''"),
        (lambda: EMNIST("digits", classes="ab"), "classes = 'ab' .* characters of 0123456789$"),
        (lambda: EMNIST("balanced", classes="cd"), "classes = 'cd'"),
        (lambda: parse({"data": {"name": "emnist", "classes": 10}}), "data.classes = 10"),
    ],
)
def test_settings_out_of_range_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_configs_name_the_papers_settings():
    femnist = parse({"data": {"name": "emnist", "classes": "abcdefghij"}, "partition": "lognormal"})
    assert femnist.data == EMNIST(classes="abcdefghij") and parse(femnist.tables()) == femnist
    assert parse({"data": "emnist", "partition": "iid"}).data == EMNIST()


def test_what_is_not_there_is_asked_for_by_name_and_place(folder):
    with pytest.raises(DataError) as caught:
        EMNIST("letters").load(0)
    message = str(caught.value)
    assert "put gzip.zip or the four files emnist-letters-train-images-idx3-ubyte, " in message
    assert message.endswith(f"EMNIST/gzip.zip into {folder.parent / 'cache' / 'emnist'}") and "\n" not in message
    name, content = next(iter(small("letters")[2].items()))
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"\({folder} lacks emnist-letters-train-labels-idx1-ubyte, "):
        EMNIST("letters").load(0)


def changed(name, content):
    files = small("letters")[2]
    return {**files, f"emnist-letters-{name}-ubyte": content}


IMAGES, LABELS = "train-images-idx3", "test-labels-idx1"


@pytest.mark.parametrize(
    "files, said",
    [
        ({}, "has no member emnist-letters-train-images-idx3-ubyte.gz; is it another .zip"),
        (changed(IMAGES, b"nothing"), "is not an idx file: it starts with the bytes 6e 6f 74 68"),
        (changed(IMAGES, idx(np.zeros((70, 28, 27), np.uint8))), r"has shape \(70, 28, 27\), expected \(N, 28, 28\)"),
        (changed(IMAGES, idx(np.zeros((70, 28, 28), np.uint8))[:-1]), "is truncated"),
        (changed(IMAGES, idx(np.zeros((71, 28, 28), np.uint8))), "has 71 images and .* has 70 labels"),
        (changed(IMAGES, struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 28, 28)), "is truncated: its header promises"),
        (changed(LABELS, idx(np.zeros(35, np.uint8))), "label 0 must be in 1 to 26"),
        (changed(LABELS, idx(np.full(35, 27, np.uint8))), "label 27 of sample 0 must be in 0 to 26"),
    ],
)
def test_a_malformed_zip_is_named(folder, files, said):
    write_zip(folder / "gzip.zip", files)
    with pytest.raises(DataError, match=said) as caught:
        EMNIST("letters").load(0)
    assert str(folder / "gzip.zip") in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder.parent / "cache").exists()


def test_a_file_that_is_no_zip_is_named(folder):
    file = folder / "gzip.zip"
    write_zip(file, small("letters")[2])
    whole = file.read_bytes()
    middle = bytearray(whole)
    middle[2000:2100] = bytes(100)
    encrypted = whole.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0")
    for content in (b"", b"not a zip", whole[:-100], whole[: len(whole) // 2], bytes(middle), encrypted):
        assert content != whole
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"cannot read {file}"):
            EMNIST("letters").load(0)


def test_names_that_climb_out_are_written_nowhere(folder):
    files = small("letters")[2]
    name = "emnist-letters-train-images-idx3-ubyte.gz"
    more = {"../climbed": b"x", "/tmp/../../climbed": b"x", f"../../{name}": gzip.compress(idx(IMAGES_OF_ZEROS))}
    write_zip(folder / "gzip.zip", files, more)
    before = {path for path in folder.parent.rglob("*")}
    samples = EMNIST("letters").load(0)
    assert samples.x[: SIZES["train"]].max() == 0  # read as any member of that name, and not by its path
    created = {path for path in folder.parent.rglob("*")} - before
    assert all(path.is_relative_to(folder.parent / "cache") for path in created)
    assert not list(folder.parent.parent.glob("climbed"))


IMAGES_OF_ZEROS = np.zeros((SIZES["train"], 28, 28), np.uint8)


ZEROS = gzip.compress(bytes(10_000_000))  # a .gz may have several parts: 70 of these unpack to 700 MB


def bomb(rows):
    """An idx file in gzip whose zeros really are there."""
    return gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, rows, 28, 28)) + ZEROS * (rows * 784 // 10_000_000 + 1)


def test_a_zip_bomb_is_refused_before_it_takes_memory(folder):
    """Two layers of compression could hold a thousand times a thousand; no EMNIST file has so many images."""
    content = bomb(900_000)
    file = folder / "gzip.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", content)
    tracemalloc.start()
    with pytest.raises(DataError, match="has 900000 rows, more than the 814255 that there are"):
        EMNIST("letters").load(0)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_bomb_behind_an_honest_header_is_refused_before_it_takes_memory(folder):
    content = gzip.compress(idx(np.zeros((5, 28, 28), np.uint8))) + ZEROS * 50
    file = folder / "gzip.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.gz", content)
    tracemalloc.start()
    with pytest.raises(DataError, match="is longer than the 3920 bytes"):
        read_zipped_idx(file, "b.gz", (None, 28, 28), most=10)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_member_that_lies_about_its_size_is_refused(folder):
    file = folder / "gzip.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b.gz", gzip.compress(idx(IMAGES_OF_ZEROS)))
        (info,) = archive.infolist()
        info.file_size = 2**31  # what the directory at the end of the .zip will say
    with pytest.raises(DataError, match=r"claims 2147483648 bytes in \d+ packed ones"):
        read_zipped_idx(file, "b.gz", (None, 28, 28), most=100)


LIMITED = """
import resource, sys
from personafl.data import EMNIST
from personafl.errors import DataError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)
try:
    EMNIST("letters").load(0)
except DataError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_a_bomb_does_not_exhaust_a_process_with_little_memory(folder):
    with zipfile.ZipFile(folder / "gzip.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", bomb(900_000))
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert "has 900000 rows" in done.stdout and done.stderr == ""


def test_a_second_load_reads_the_cache(folder):
    images, labels, files = small("mnist")
    write_zip(folder / "gzip.zip", files)
    EMNIST("mnist").load(0)
    (entry,) = (folder.parent / "cache" / "prepared").iterdir()
    assert entry.name.startswith("emnist-")
    stat = (folder / "gzip.zip").stat()
    (folder / "gzip.zip").write_bytes(bytes(stat.st_size))  # destroyed, but of the same size and time
    os.utime(folder / "gzip.zip", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert_pool(EMNIST("mnist").load(0), images, labels)
    assert build(EMNIST("mnist"), IID(3)).classes == 10


def test_the_packed_test_images_of_byclass_are_taken_where_nothing_else_is(folder):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (70, 28, 28), np.uint8), rng.permutation(70).astype(np.uint8) % 62
    np.savez(folder / "emnist_byclass_test.npz", x=x, y=y, mapping=np.arange(62, dtype=np.uint8))
    assert_pool(EMNIST().load(0), x, y)  # upright as it is
    kept = np.isin(y, [36, 38])
    some = EMNIST(classes="ca").load(0)
    assert_pool(some, x[kept], np.where(y[kept] == 36, 1, 0))
    with pytest.raises(DataError, match=r"gzip\.zip"):
        EMNIST("balanced").load(0)
    images, labels, files = small("byclass")
    write_zip(folder / "gzip.zip", files)
    assert_pool(EMNIST().load(0), images, labels)


def test_packed_images_with_a_label_too_many_are_refused(folder):
    np.savez(folder / "emnist_byclass_test.npz", x=np.zeros((2, 28, 28), np.uint8), y=np.array([0, 62], np.uint8))
    with pytest.raises(DataError, match="label 62 of sample 1 must be in 0 to 61"):
        EMNIST().load(0)
