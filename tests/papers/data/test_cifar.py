"""Facts about cifar10 and cifar100: every form of their files gives the same samples, and nothing else is read."""

import gzip
import io
import math
import pickle
import tarfile
import tracemalloc

import numpy as np
import pytest
import torch

from personafl.data import IID, SOURCES, build
from personafl.data.readers import find
from personafl.errors import ConfigError, DataError
from personafl_papers.data import cifar
from personafl_papers.data.cifar10 import CIFAR10
from personafl_papers.data.cifar100 import CIFAR100, SUPERCLASSES
from tests.federation.test_pickles import attack, python_2

EACH = 5  # images in a batch
BATCHES = {
    CIFAR10: ("cifar-10-batches-py", [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]),
    CIFAR100: ("cifar-100-python", ["train", "test"]),
}
BINARY = {CIFAR10: "cifar-10-batches-bin", CIFAR100: "cifar-100-binary"}
ARCHIVES = {CIFAR10: "cifar-10-{}.tar.gz", CIFAR100: "cifar-100-{}.tar.gz"}
CLASSES = {CIFAR10: 10, CIFAR100: 100}


@pytest.fixture
def folder(folder, tmp_path, monkeypatch):
    """An empty data directory, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def arrays(source, each=EACH):
    """Images (N, 3, 32, 32) and fine labels of each batch."""
    rng = np.random.default_rng(CLASSES[source])
    return [
        (rng.integers(0, 256, (each, 3, 32, 32), np.uint8), rng.integers(0, CLASSES[source], each).astype(np.uint8))
        for _ in BATCHES[source][1]
    ]


def python_2_batch(source, images, labels):
    """A batch as it is in the python version, with its entries in their order."""
    data = images.reshape(len(images), math.prod(images.shape[1:]))
    names = [f"camion_s_{number:06}.png" for number in range(len(labels))]
    if source is CIFAR10:
        entries = {"batch_label": "training batch 1 of 5", "labels": [*labels], "data": data, "filenames": names}
    else:
        coarse = SUPERCLASSES[labels].tolist()
        entries = {"filenames": names, "batch_label": "training batch 1 of 1", "fine_labels": [*labels]}
        entries |= {"coarse_labels": coarse, "data": data}
    return python_2(entries)


def python_3_batch(source, images, labels):
    data, labels = images.reshape(len(images), -1), list(map(int, labels))
    return pickle.dumps({"data": data, "labels" if source is CIFAR10 else "fine_labels": labels}, protocol=2)


def binary(source, images, labels):
    columns = [labels[:, None], images.reshape(len(images), -1)]
    if source is CIFAR100:
        columns.insert(0, SUPERCLASSES[labels][:, None].astype(np.uint8))
    return np.concatenate(columns, axis=1).tobytes()


def files(source, batches, write=python_2_batch):
    """The batches' files by their names in the archive."""
    place, suffix = (BINARY[source], ".bin") if write is binary else (BATCHES[source][0], "")
    named = zip(BATCHES[source][1], batches, strict=True)
    return {f"{place}/{name}{suffix}": write(source, *batch) for name, batch in named}


def tar(members):
    """A .tar.gz with these members: bytes for plain files, or a TarInfo with or without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT, compresslevel=1) as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def write_files(folder, members):
    for name, content in members.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def write_npz(file, batches):
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    x, test = x.transpose(0, 2, 3, 1), len(batches[-1][1])
    np.savez(file, x_train=x[:-test], y_train=y[:-test], x_test=x[-test:], y_test=y[-test:])


def write(folder, source, batches, form):
    write_as = {"python-3": python_3_batch, "binary": binary}.get(form.removesuffix("-archive"), python_2_batch)
    if form == "npz":
        write_npz(folder / f"{source.name}.npz", batches)
    elif form.endswith("archive"):
        # As in the real archive, the batches are not in their order, and there is more than these.
        members = dict(reversed(files(source, batches, write_as).items()))
        place = next(iter(members)).split("/")[0]
        directory = tarfile.TarInfo(place)
        directory.type = tarfile.DIRTYPE
        kind = "binary" if write_as is binary else "python"
        content = tar({place: directory, f"{place}/readme.html": b"<html>", **members, f"{place}/batches.meta": b"no"})
        (folder / ARCHIVES[source].format(kind)).write_bytes(content)
    else:
        write_files(folder, files(source, batches, write_as))


@pytest.mark.parametrize("source", [CIFAR10, CIFAR100])
@pytest.mark.parametrize(
    "form", ["npz", "python-2", "python-2-archive", "python-3", "python-3-archive", "binary", "binary-archive"]
)
def test_every_form_gives_the_same_pool(folder, source, form):
    batches = arrays(source)
    write(folder, source, batches, form)
    before = sorted(folder.rglob("*"))
    samples = source(normalize="unit").load(0)
    pool = np.concatenate([images for images, _ in batches])
    assert samples.x.shape == pool.shape and samples.x.dtype == np.float32
    assert np.array_equal(np.rint(samples.x * 255), pool)
    assert samples.y.dtype == np.int64 and samples.y.tolist() == [label for _, labels in batches for label in labels]
    assert samples.classes == CLASSES[source]
    assert sorted(folder.rglob("*")) == before
    again = source(normalize="unit").load(1)
    assert np.array_equal(again.x, samples.x) and np.array_equal(again.y, samples.y) and not again.x.flags.writeable


def test_the_first_values_of_a_batch_are_the_red_ones_of_the_first_row(folder):
    batches = arrays(CIFAR10, each=1)
    batches[0][0][:] = 0
    batches[0][0][0, 0, 0] = np.arange(32)
    for form in ("npz", "binary", "python-2"):
        write(folder, CIFAR10, batches, form)
    for written in (folder / "cifar10.npz", folder / "cifar-10-batches-py" / "test_batch", None):
        x = CIFAR10(normalize="unit").load(0).x
        assert np.rint(x[0, 0, 0] * 255).tolist() == list(range(32)) and not x[0, 1:].any() and not x[0, 0, 1:].any()
        if written:
            written.unlink()


def test_normalizations_are_those_of_torchvision_to_the_bit(folder):
    batches = arrays(CIFAR10)
    batches[0][0].reshape(-1)[:256] = np.arange(256)
    write(folder, CIFAR10, batches, "binary")
    to_tensor = torch.from_numpy(np.concatenate([images for images, _ in batches])).to(torch.float32).div(255)
    assert torch.equal(torch.from_numpy(CIFAR10(normalize="unit").load(0).x.copy()), to_tensor)
    half = to_tensor.clone().sub_(torch.tensor(0.5)).div_(torch.tensor(0.5))
    assert torch.equal(torch.from_numpy(CIFAR10().load(0).x.copy()), half)
    assert half.min() == -1 and half.max() == 1
    for source in (CIFAR10, CIFAR100):
        with pytest.raises(ConfigError, match=f"data {source.name}: normalize = 'fedprox' must be half or unit"):
            source(normalize="fedprox")


TABLE = """
beaver dolphin otter seal whale | aquarium_fish flatfish ray shark trout | orchid poppy rose sunflower tulip |
bottle bowl can cup plate | apple mushroom orange pear sweet_pepper | clock keyboard lamp telephone television |
bed chair couch table wardrobe | bee beetle butterfly caterpillar cockroach | bear leopard lion tiger wolf |
bridge castle house road skyscraper | cloud forest mountain plain sea | camel cattle chimpanzee elephant kangaroo |
fox porcupine possum raccoon skunk | crab lobster snail spider worm | baby boy girl man woman |
crocodile dinosaur lizard snake turtle | hamster mouse rabbit shrew squirrel |
maple_tree oak_tree palm_tree pine_tree willow_tree | bicycle bus motorcycle pickup_truck train |
lawn_mower rocket streetcar tank tractor
"""


def test_coarse_labels_are_those_of_the_published_table_of_superclasses(folder):
    groups = [group.split() for group in TABLE.split("|")]
    classes = sorted(name for group in groups for name in group)
    assert SUPERCLASSES.tolist() == [next(g for g, group in enumerate(groups) if name in group) for name in classes]
    batches = arrays(CIFAR100)
    batches[0][1][:3] = [classes.index(name) for name in ("maple_tree", "apple", "tractor")]
    write(folder, CIFAR100, batches, "npz")
    coarse = CIFAR100(labels="coarse").load(0)
    assert coarse.y[:3].tolist() == [17, 4, 19] and coarse.classes == 20 and coarse.y.dtype == np.int64
    with pytest.raises(ConfigError, match="data cifar100: labels = 'super' must be fine or coarse"):
        CIFAR100(labels="super")


def test_default_shares_are_three_quarters_and_five_sixths(folder):
    for source, sizes in ((CIFAR10, (45, 15)), (CIFAR100, (50, 10))):
        write(folder, source, arrays(source, each=60 // len(BATCHES[source][1])), "binary")
        fed = build(source(), IID(clients=1))
        assert (fed.sizes("train")[0], fed.sizes("test")[0]) == sizes and fed.sizes("val")[0] == 0


@pytest.mark.parametrize("source", [CIFAR10, CIFAR100])
def test_what_is_not_there_is_asked_for_with_where_to_get_it(folder, source):
    archive = ARCHIVES[source].format("python")
    with pytest.raises(DataError, match=rf"data {source.name} is not in .*{archive}.*cs\.toronto\.edu/~kriz/{archive}"):
        source().load(0)
    write(folder, source, arrays(source), "python-2")
    place, names = BATCHES[source]
    (folder / place / names[-1]).unlink()
    with pytest.raises(DataError, match=rf"{place} lacks {names[-1]}\)"):
        source().load(0)


def refused(folder, source, members, said, kind="python"):
    file = folder / ARCHIVES[source].format(kind)
    file.write_bytes(members if isinstance(members, bytes) else tar(members))
    with pytest.raises(DataError, match=said) as caught:
        source().load(0)
    line = str(caught.value)
    assert str(file) in line and "\n" not in line
    assert [entry.name for entry in folder.parent.rglob("*") if entry.is_file()] == [file.name]


def test_an_archive_must_have_every_batch(folder):
    members = files(CIFAR10, arrays(CIFAR10))
    del members["cifar-10-batches-py/data_batch_3"]
    refused(folder, CIFAR10, members, "has no file cifar-10-batches-py/data_batch_3; get the file again")
    refused(folder, CIFAR10, {}, "has no file cifar-10-batches-py/data_batch_1")


def test_one_data_set_is_not_taken_for_the_other(folder):
    hundred = arrays(CIFAR100)
    refused(folder, CIFAR10, files(CIFAR100, hundred), "has no file cifar-10-batches-py/data_batch_1")
    renamed = dict.fromkeys(files(CIFAR10, arrays(CIFAR10)), python_2_batch(CIFAR100, *hundred[0]))
    refused(folder, CIFAR10, renamed, "data_batch_1 has no 'labels'; expected data, labels, found filenames, batch_lab")
    renamed = dict.fromkeys(files(CIFAR10, arrays(CIFAR10), binary), binary(CIFAR100, *hundred[0]))
    (folder / "cifar-10-python.tar.gz").unlink()
    refused(folder, CIFAR10, renamed, r"is 15370 bytes long, no multiple of the 3073 of", kind="binary")
    write_npz(folder / "cifar10.npz", [(images, labels | 16) for images, labels in hundred])
    with pytest.raises(DataError, match=r"cifar10\.npz \(train\): label \d+ of sample 0 must be in 0 to 9"):
        CIFAR10().load(0)
    ten = arrays(CIFAR10, each=10)
    ten[0][1][:] = cifar.CIFAR10_FIRST
    write_npz(folder / "cifar100.npz", ten)
    with pytest.raises(DataError, match=r"cifar100\.npz \(train\) is of cifar10, not of cifar100"):
        CIFAR100().load(0)


IMAGES, LABELS = arrays(CIFAR10)[0]


@pytest.mark.parametrize(
    "content, said",
    [
        (python_2_batch(CIFAR10, IMAGES, LABELS[:-1]), "has 5 images and 4 labels; they must be as many"),
        (python_2_batch(CIFAR10, IMAGES[:0], LABELS[:0]), "has 0 images and 0 labels"),
        (python_2_batch(CIFAR10, IMAGES, [*LABELS[:-1], 10]), "label 10 of sample 4 must be in 0 to 9"),
        (python_2_batch(CIFAR10, IMAGES, [*LABELS[:-1], 256]), "'labels' is not a list of class numbers"),
        (python_2_batch(CIFAR10, IMAGES, [*LABELS[:-1], -1]), "'labels' is not a list of class numbers"),
        (python_2_batch(CIFAR10, IMAGES[:, :2], LABELS), r"'data' has shape \(5, 2048\), expected \(N, 3072\)"),
        (
            pickle.dumps({"data": IMAGES.ravel(), "labels": [1]}, 2),
            r"'data' has shape \(15360,\), expected \(N, 3072\)",
        ),
        (pickle.dumps({"data": [1], "labels": [1]}, 2), r"'data' has no array, expected \(N, 3072\)"),
        (pickle.dumps({"data": IMAGES.reshape(5, -1), "labels": [True] * 5}, 2), "'labels' is not a list of class num"),
        (pickle.dumps({"data": IMAGES.reshape(5, -1), "labels": LABELS}, 2), "'labels' is not a list of class numbers"),
        (python_2_batch(CIFAR10, IMAGES, LABELS)[:-700], "is not a pickle of arrays"),
        (b"\x1f\x8b\x08\x00", "is not a pickle of arrays: at position 0"),
        (b"", "is 0 bytes long, expected 1 to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_batch_is_named(folder, content, said):
    name = "cifar-10-batches-py/data_batch_2"
    members = files(CIFAR10, arrays(CIFAR10)) | {name: content}
    refused(folder, CIFAR10, members, said)
    (folder / "cifar-10-python.tar.gz").unlink()
    write_files(folder, members)
    with pytest.raises(DataError, match=said) as caught:
        CIFAR10().load(0)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 3072, 3074])
def test_a_malformed_binary_batch_is_named(folder, length):
    members = files(CIFAR10, arrays(CIFAR10), binary) | {"cifar-10-batches-bin/test_batch.bin": bytes(length)}
    refused(folder, CIFAR10, members, rf"test_batch\.bin is {length} bytes long", kind="binary")


def test_a_batch_with_code_is_refused_and_nothing_is_executed(folder):
    made = folder.parent / "made"
    for name in ("os.system", "posix.system", "__builtin__.eval", "subprocess.call", "os.popen"):
        members = files(CIFAR10, arrays(CIFAR10)) | {"cifar-10-batches-py/test_batch": attack(made)[name]}
        refused(folder, CIFAR10, members, f"test_batch asks for {name}, which no array needs")
        assert not made.exists()


def test_an_npz_must_have_the_arrays_in_their_shapes(folder):
    file = folder / "cifar10.npz"
    x, y = IMAGES.transpose(0, 2, 3, 1), LABELS
    for change, said in (
        ({"x_test": IMAGES}, r"x_test has shape \(5, 3, 32, 32\), expected \(N, 32, 32, 3\)"),
        ({"y_test": y[:, None]}, r"y_test has shape \(5, 1\), expected \(N,\)"),
        ({"y_train": y[:4]}, r"\(train\) has 5 images and 4 labels"),
        ({"x_train": x.astype(np.uint16)}, "x_train holds uint16 values, expected uint8"),
        ({"x_train": x / 255}, "x_train holds float64 values"),
        ({"x_train": x.astype(object)}, "x_train holds object values"),
    ):
        np.savez(file, **{"x_train": x, "y_train": y, "x_test": x, "y_test": y} | change)
        with pytest.raises(DataError, match=said):
            CIFAR10().load(0)


def info(name, kind=tarfile.REGTYPE, target="", size=0):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


def test_members_with_climbing_names_links_and_devices_are_passed_over_or_refused(folder):
    batches = arrays(CIFAR10)
    good = files(CIFAR10, batches)
    strange = {
        "../climbing": b"x" * 700,
        "/tmp/absolute": b"x",
        "cifar-10-batches-py/../../climbing": b"x",
        "link": info("link", tarfile.SYMTYPE, "/etc/passwd"),
        "device": info("device", tarfile.CHRTYPE),
        "pipe": info("pipe", tarfile.FIFOTYPE),
        "./cifar-10-batches-py/data_batch_1": b"not this one",
        "hard": info("hard", tarfile.LNKTYPE, "../climbing", size=700),  # of what it links to; nothing follows
    }
    first = "cifar-10-batches-py/data_batch_1"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S"):
        refused(folder, CIFAR10, good | {first: info(first, kind, "/etc/passwd")}, f"{first} is not a plain file")
    before = sorted(folder.parent.rglob("*"))
    (folder / "cifar-10-python.tar.gz").write_bytes(tar(strange | good))
    samples = CIFAR10(normalize="unit").load(0)
    assert np.array_equal(np.rint(samples.x[:EACH] * 255), batches[0][0])
    cache = folder.parent / "cache"
    assert [path for path in sorted(folder.parent.rglob("*")) if path != cache and cache not in path.parents] == before


def test_archives_with_long_names_are_read(folder):
    batches = arrays(CIFAR10)
    for format_ in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", format=format_) as archive:
            for name, content in {"a/" * 200 + "b": b"x", "größe": b"x", **files(CIFAR10, batches)}.items():
                archive.addfile(info(name, size=len(content)), io.BytesIO(content))
        (folder / "cifar-10-python.tar.gz").write_bytes(out.getvalue())
        assert np.array_equal(np.rint(CIFAR10("unit").load(0).x[:EACH] * 255), batches[0][0])


def test_a_damaged_archive_is_named(folder):
    content = tar(files(CIFAR10, arrays(CIFAR10)))
    for damaged, said in (
        (b"", "has no file"),
        (b"PK\x03\x04" + content, "Not a gzipped file"),
        (b"<html>404</html>", "Not a gzipped file"),
        (content[: len(content) // 2], "cannot read .*end-of-stream"),
        (content[:-6], "cannot read .*end-of-stream"),
        (content[:-8] + bytes(8), "cannot read .*CRC"),
        (gzip.compress(b"no tar" * 200), "cannot read .*"),
        (gzip.compress(gzip.decompress(content)[:5000]), "it ends inside a file"),
        (gzip.compress(gzip.decompress(content)[:700]), "it ends inside a file"),
        (gzip.compress(gzip.decompress(content)[:100]), "truncated header"),
    ):
        refused(folder, CIFAR10, damaged, said)


def test_an_archive_that_unpacks_to_too_much_is_refused_without_taking_memory(folder, monkeypatch):
    monkeypatch.setattr(cifar, "_MOST_BYTES", 1 << 20)
    name = "cifar-10-batches-py/data_batch_1"
    zeros = bytes(1 << 22)
    promise = info(name, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    other = info("other", size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    long_name = info("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    extended = info("pax", tarfile.XHDTYPE, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    within = info(name, size=1 << 20).tobuf()
    for archive, said in (
        (promise, "is 1099511627776 bytes long, expected 1 to"),
        (other + zeros, "unpacks to more than 1048576 bytes"),
        (long_name + zeros, "unpacks to more than 1048576 bytes"),
        (extended + zeros, "unpacks to more than 1048576 bytes"),
        (within, "it ends inside a file"),
        (info("empty").tobuf() * 4000, "unpacks to more than 1048576 bytes"),
        (bytes(1 << 22), "unpacks to more than 1048576 bytes"),
    ):
        packed = gzip.compress(archive, 1)
        tracemalloc.start()
        refused(folder, CIFAR10, packed, said)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 6_000_000


@pytest.mark.slow
def test_the_real_cifar10_is_as_published(tmp_path, monkeypatch):
    if find("cifar10.npz") is None:
        pytest.skip("cifar10.npz is not in the data directories; PERSONAFL_DATA names one")
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path))
    samples = CIFAR10(normalize="unit").load(0)
    assert samples.x.shape == (60_000, 3, 32, 32)
    assert np.bincount(samples.y).tolist() == [6000] * 10
    assert np.bincount(samples.y[50_000:]).tolist() == [1000] * 10
    assert samples.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert np.rint(samples.x[0].ravel()[[0, 1, 2, -3, -2, -1]] * 255).tolist() == [59, 43, 50, 140, 84, 72]
    means = [samples.x[:50_000, channel].mean(dtype=np.float64) for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


def test_cifar_is_found_where_it_was_before_it_moved(monkeypatch):
    import personafl as pf

    assert pf.data.CIFAR10 is CIFAR10 and pf.data.CIFAR100 is CIFAR100
    assert SOURCES.name_of(CIFAR10) == "cifar10"
    monkeypatch.setattr(pf.data, "SOURCES", {})
    with pytest.raises(AttributeError, match=r"personafl\.data\.CIFAR10 is now in the package personafl-papers"):
        _ = pf.data.CIFAR10
