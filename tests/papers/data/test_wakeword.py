"""Facts about wakeword: Speech Commands is read in each of its forms, and clients are those of the paper's Table 2."""

import gzip
import io
import os
import struct
import tarfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from personafl.config import parse
from personafl.data import IID, build
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl_papers.data.audio import RATE, mulaw_encoded
from personafl_papers.data.devices import DEVICES, STATES
from personafl_papers.data.speech import MOST_BYTES, find_corpus
from personafl_papers.data.wakeword import PAPER_SIZES, Wakeword, apportioned, deal, states_tested

WORDS = ("go", "up", "zero")
PEOPLE = 40
QUICK = Wakeword(negatives=1, test=0.05, mels=8)


@pytest.fixture
def folder(folder, tmp_path, monkeypatch):
    """An empty data directory and an empty cache, and nothing else that could be read or written."""
    monkeypatch.chdir(tmp_path)
    return folder


def wav(samples, rate=16_000):
    pcm = samples.astype("<i2").tobytes()
    layout = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + layout + struct.pack("<4sI", b"data", len(pcm)) + pcm
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def clips():
    """{name: wav file} of a small corpus, each clip a tone of its own; person k says each word 1 + k % 3 times."""
    rng = np.random.default_rng(0)
    out = {}
    for word in WORDS:
        for k in range(PEOPLE):
            for n in range(1 + k % 3):
                wave = 8_000 * np.sin(rng.uniform(0.1, 0.3) * (1 + WORDS.index(word)) * np.arange(2_000))
                out[f"{word}/{k:08x}_nohash_{n}.wav"] = wav(wave)
    return out


CLIPS = clips()


def write_tree(place, files=CLIPS):
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def tar_gz(entries):
    """The archive of (header, content) or of (name, content)."""
    stream = io.BytesIO()
    with gzip.open(stream, "wb", 1) as packed, tarfile.open(fileobj=packed, mode="w:") as archive:
        for entry, content in entries:
            header = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return stream.getvalue()


def npz_arrays(count=300):
    rng = np.random.default_rng(0)
    return {
        "audio_mulaw": rng.integers(0, 256, (count, RATE), np.uint8),
        "label": (np.arange(count) % 3).astype(np.uint8),
        "speaker": (np.arange(count) // 5).astype(np.int16),
        "classes": np.array(WORDS),
        "sr": np.array(RATE),
    }


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["speech_commands_v0.02", "speech_commands_v0.01", "SpeechCommands/speech_commands_v0.02"]
)
def test_the_folder_is_found_where_people_have_it(folder, place):
    write_tree(folder / place)
    write_tree(folder / place, {"_background_noise_/pink_noise.wav": b"long", "LICENSE": b"", "go/notes.txt": b""})
    found = find_corpus("wakeword").clips()
    assert found.name.tolist() == sorted(name.removesuffix(".wav") for name in CLIPS)
    assert found.word.tolist() == [name.split("/")[0] for name in found.name.tolist()]
    assert found.speaker.tolist() == [name.split("/")[1].split("_")[0] for name in found.name.tolist()]
    assert found.codes.shape == (len(CLIPS), RATE) and found.codes.dtype == np.uint8
    assert (found.codes[:, 1_100:] == 128).all()  # an eighth of a second, then silence


@pytest.mark.parametrize("prefix", ["", "./", "speech_commands_v0.02/"])
def test_the_archive_holds_the_same_clips_as_its_folder_in_any_order(folder, prefix):
    write_tree(folder / "speech_commands_v0.02")
    tree = find_corpus("wakeword").clips()
    for file in sorted((folder / "speech_commands_v0.02").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (folder / "speech_commands_v0.02").rmdir()
    shuffled = [(prefix + name, content) for name, content in reversed(CLIPS.items())]
    shuffled.insert(3, (f"{prefix}_background_noise_/pink_noise.wav", bytes(2 * MOST_BYTES)))
    (folder / "speech_commands_v0.02.tar.gz").write_bytes(tar_gz(shuffled))
    archive = find_corpus("wakeword").clips()
    for what in ("codes", "word", "speaker", "name"):
        assert np.array_equal(getattr(tree, what), getattr(archive, what))


def test_the_npz_is_read(folder):
    arrays = npz_arrays()
    np.savez_compressed(folder / "speech_commands_8khz_mulaw.npz", **arrays)
    found = find_corpus("wakeword").clips()
    assert len(set(found.name.tolist())) == 300
    order = np.argsort([f"{w}/{s}/{n}" for w, s, n in _numbered(arrays)])
    assert np.array_equal(found.codes, arrays["audio_mulaw"][order])
    assert found.word.tolist() == arrays["classes"][arrays["label"]][order].tolist()
    assert found.speaker.tolist() == arrays["speaker"][order].astype(str).tolist()


def _numbered(arrays):
    seen = {}
    for label, speaker in zip(arrays["label"].tolist(), arrays["speaker"].tolist(), strict=True):
        seen[label, speaker] = seen.get((label, speaker), -1) + 1
        yield WORDS[label], speaker, seen[label, speaker]


def test_a_clip_at_8_khz_is_its_samples_and_a_long_one_is_cut(folder):
    long = np.random.default_rng(0).integers(-9_000, 9_000, 9_000)
    write_tree(folder / "speech_commands_v0.01", {"go/0a_nohash_0.wav": wav(long, rate=8_000)})
    found = find_corpus("wakeword").clips()
    assert np.array_equal(found.codes[0], mulaw_encoded(long[:RATE] / 32768))


def test_a_folder_comes_before_an_archive_and_an_archive_before_the_npz(folder):
    for step, (name, write) in enumerate(
        (
            ("speech_commands_8khz_mulaw.npz", lambda file: np.savez(file, **npz_arrays())),
            ("speech_commands_v0.02.tar.gz", lambda file: file.write_bytes(tar_gz(CLIPS.items()))),
            ("speech_commands_v0.02", write_tree),
        )
    ):
        write(folder / name)
        assert find_corpus("wakeword").path == folder / name, step


def test_what_is_not_there_is_asked_for_with_the_address_of_the_archive(folder):
    with pytest.raises(
        DataError, match=r"data wakeword is not in .*put the folder speech_commands_v0\.02, or "
    ) as told:
        Wakeword().load(0)
    assert "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz" in str(told.value)


# --- files that are not what they should be ---------------------------------------------------------------------


GOOD = ("go/0a_nohash_0.wav", wav(np.ones(10)))


def _link(name, target, kind):
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header, b""


def test_names_that_climb_and_links_are_passed_over_and_nothing_is_written(folder):
    escape = wav(np.full(10, 999))
    entries = [
        ("../go/0b_nohash_0.wav", escape),
        ("/tmp/go/0c_nohash_0.wav", escape),
        ("go/../../0d_nohash_0.wav", escape),
        ("./go/sub/0e_nohash_0.wav", escape),
        _link("go/0f_nohash_0.wav", "/etc/passwd", tarfile.SYMTYPE),
        _link("go/10_nohash_0.wav", "../../data", tarfile.LNKTYPE),
        _link("go/11_nohash_0.wav", "", tarfile.FIFOTYPE),
        _link("go", "/tmp", tarfile.SYMTYPE),
        ("go/12_nohash_0.wav.exe", escape),
        GOOD,
    ]
    (folder / "speech_commands_v0.02.tar.gz").write_bytes(tar_gz(entries))
    assert find_corpus("wakeword").clips().name.tolist() == ["go/0a_nohash_0"]
    written = [str(path.relative_to(folder.parent)) for path in folder.parent.rglob("*")]
    assert all(path.startswith(("cache/prepared/speech-", "data/speech_commands_v0.02.tar.gz")) for path in written if
               path not in ("cache", "data", "cache/prepared"))  # fmt: skip


def _header(name, size, kind=tarfile.REGTYPE):
    """A tar header that claims any size, also one that is negative."""
    header = tarfile.TarInfo(name)
    header.type = kind
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


SHORT = tar_gz([GOOD, ("up/0a_nohash_0.wav", wav(np.arange(20_000)))])
ZEROS = 300 * gzip.compress(bytes(1 << 20))  # 300 MB, in pieces: gzip reads one after the other


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "holds no clips|cannot read"),
        (b"not gzip at all", "cannot read .*[Nn]ot a gzipped file"),
        (gzip.compress(b"not a tar" * 100), "cannot read .*header"),
        (SHORT[: len(SHORT) // 2], "cannot read .*get the file again"),
        (tar_gz([("go/readme.txt", b"")]), "holds no clips; expected files such as zero/"),
        (tar_gz([GOOD, GOOD]), r"holds go/0a_nohash_0\.wav twice"),
        (tar_gz([("go/0a_nohash_0.wav", b"RIFF")]), r"go/0a_nohash_0\.wav is not a readable wav file"),
        (tar_gz([("go/0a_nohash_0.wav", wav(np.ones(9), 44_100))]), r"go/0a_nohash_0\.wav has 1 channels .* 44100 Hz"),
        (tar_gz([("go/0a_nohash_0.wav", bytes(MOST_BYTES + 1))]), "has 1048577 bytes; a clip of one second has about"),
        (gzip.compress(_header("go/0a_nohash_0.wav", 10**15)), "has 1000000000000000 bytes"),
        (gzip.compress(_header("a" * 9, 10**15)), "cannot read .*unexpected end of data"),
        (gzip.compress(_header("a", 300 << 20, tarfile.GNUTYPE_LONGNAME)) + ZEROS, "a header claims 314572800"),
        (gzip.compress(_header("a", 300 << 20, tarfile.XHDTYPE)) + ZEROS, "a header claims 314572800"),
        (gzip.compress(_header("a", -512) + bytes(1024)), "cannot read|leads back|holds no clips"),
        (gzip.compress(3 * _header("b", 0) + _header("a", -1024) + bytes(2048)), "cannot read|leads back to byte 1023"),
        (gzip.compress(_header("go/0a_nohash_0.wav", -1024) + bytes(4096)), "has -1024 bytes|cannot read|leads back"),
        (gzip.compress(_header("a", -512, tarfile.GNUTYPE_LONGNAME) + bytes(1024)), "a header claims -512 bytes"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:25],
)
def test_damaged_archives_are_refused_in_one_line_without_much_memory_or_time(folder, content, said):
    (folder / "speech_commands_v0.02.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=said):
        Wakeword().load(0)  # what it imports the first time is not what is measured
    start = time.perf_counter()
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as refused:
        Wakeword().load(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "speech_commands_v0.02.tar.gz" in str(refused.value) and "\n" not in str(refused.value)
    assert peak < 20e6 and time.perf_counter() - start < 10


@pytest.mark.parametrize("seed", range(25))
def test_archives_with_wrong_bytes_are_read_or_refused_and_nothing_else(folder, seed):
    rng = np.random.default_rng(seed)
    content = bytearray(gzip.decompress(tar_gz([GOOD, ("up/0a_nohash_0.wav", wav(np.ones(10)))])))
    for place in rng.integers(0, 1_600, size=4):
        content[place] = rng.integers(256)
    (folder / "speech_commands_v0.02.tar.gz").write_bytes(gzip.compress(bytes(content)))
    try:
        find_corpus("wakeword").clips()
    except DataError as error:
        assert "speech_commands_v0.02.tar.gz" in str(error)


def test_a_file_of_a_folder_that_is_no_clip_is_named(folder):
    write_tree(folder / "speech_commands_v0.02", {"go/0a_nohash_0.wav": bytes(MOST_BYTES + 1)})
    with pytest.raises(DataError, match=r"go/0a_nohash_0\.wav has 1048577 bytes"):
        Wakeword().load(0)
    write_tree(folder / "speech_commands_v0.02", {"go/0a_nohash_0.wav": GOOD[1][:50]})
    with pytest.raises(DataError, match=r"go/0a_nohash_0\.wav is truncated"):
        Wakeword().load(0)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "changed, said",
    [
        (
            {"audio_mulaw": np.zeros((300, 16_000), np.uint8)},
            r"audio_mulaw has shape \(300, 16000\), expected \(N, 8000",
        ),
        ({"audio_mulaw": np.zeros(300, np.uint8)}, r"audio_mulaw has shape \(300,\)"),
        ({"audio_mulaw": np.zeros((300, RATE), np.int16)}, "audio_mulaw holds int16 values, expected uint8"),
        ({"audio_mulaw": np.zeros((300, RATE), np.float16)}, "audio_mulaw holds float16 values"),
        ({"label": np.zeros(299, np.uint8)}, "300 clips, 299 labels and 300 speakers must be as many"),
        ({"label": np.full(300, 3, np.uint8)}, "label 3 of clip 0 must be in 0 to 2"),
        ({"label": np.full(300, -1, np.int8)}, "label -1 of clip 0 must be in 0 to 2"),
        ({"speaker": np.zeros((300, 1), np.int16)}, r"speaker has shape \(300, 1\)"),
        ({"classes": np.arange(3)}, "classes holds int64 values, expected text"),
        ({"classes": np.array([Trap(), "up", "zero"], object)}, "classes holds object values, expected text"),
        ({"label": np.array([Trap()] * 300, object)}, "label holds object values"),
        ({"speaker": None}, "has no array 'speaker'"),
    ],
)
def test_an_npz_that_is_not_as_expected_is_refused_and_nothing_in_it_runs(folder, changed, said):
    arrays = {name: array for name, array in (npz_arrays() | changed).items() if array is not None}
    np.savez_compressed(folder / "speech_commands_8khz_mulaw.npz", **arrays)
    with pytest.raises(DataError, match=said) as refused:
        Wakeword().load(0)
    assert "speech_commands_8khz_mulaw.npz" in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("executed").exists()


# --- clients ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A data directory with the small corpus, in a cache of its own."""
    place = tmp_path_factory.mktemp("small")
    write_tree(place / "data" / "speech_commands_v0.02")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_DATA", str(place / "data"))
        patch.setenv("PERSONAFL_CACHE", str(place / "cache"))
        yield place


def heard_clips(monkeypatch, source, seed=0):
    """(device, state, clip name) of each sample of a federation, in its order, and the federation."""
    from personafl_papers.data import wakeword

    heard = []
    recorded = wakeword.recorded

    def listening(waves, device, states, names, seed):
        heard.extend((device, state, name) for state, name in zip(states, names, strict=True))
        return recorded(waves, device, states, names, seed)

    monkeypatch.setattr(wakeword, "recorded", listening)
    corpus = find_corpus("wakeword").clips()
    arrays = source._prepare(corpus, seed)
    monkeypatch.undo()
    return heard, arrays


def test_published_sample_sizes_are_those_of_table_2():
    assert {device: sum(sizes) for device, sizes in PAPER_SIZES.items()} == {
        "A": 55_933, "B": 33_721, "C": 14_740, "D": 99_742, "E": 63_400,
    }  # fmt: skip
    assert list(PAPER_SIZES) == list(DEVICES)


@pytest.mark.parametrize("clients, validation", [(1, 0.0), (2, 0.25)])
def test_nobody_is_with_two_clients_or_in_two_splits_and_no_clip_is_lost(small, monkeypatch, clients, validation):
    source = Wakeword(clients=clients, validation=validation)
    heard, arrays = heard_clips(monkeypatch, source)
    counts = arrays["counts"].sum(axis=2)
    owner = np.repeat(np.arange(5 * clients), counts.sum(axis=1))
    split = np.concatenate([np.repeat([0, 1, 2], row) for row in counts])
    person = np.array([name.split("/")[1].split("_")[0] for _, _, name in heard])
    homes = set(zip(person[split < 2], owner[split < 2], split[split < 2], strict=True))
    assert len(homes) == len(set(person[split < 2]))
    assert not set(person[split == 2]) & set(person[split < 2])
    names = np.array([name for _, _, name in heard])
    assert len(names[split < 2]) == len(set(names[split < 2]))
    assert {f"{name}.wav" for name in names} == set(CLIPS)
    assert (split == 1).any() == (validation > 0)
    y = [name.startswith("zero/") for name in names]
    assert np.array_equal(arrays["y"], y)


def test_each_type_tests_on_the_same_people_in_each_of_its_states(small, monkeypatch):
    heard, arrays = heard_clips(monkeypatch, Wakeword(clients=2))
    counts = arrays["counts"].sum(axis=2)
    split = np.concatenate([np.repeat([0, 1, 2], row) for row in counts])
    tested = {}
    for (device, state, name), k in zip(heard, split, strict=True):
        if k == 2:
            tested.setdefault((device, state), []).append(name)
    assert set(tested) == {(d, s) for d in DEVICES for s, n in zip(STATES, PAPER_SIZES[d], strict=True) if n}
    assert len({tuple(sorted(names)) for names in tested.values()}) == 1
    share = len(tested["A", "normal"]) / (len(CLIPS) - len(tested["A", "normal"]))
    assert share == pytest.approx(0.2, abs=0.03)


def test_with_one_or_four_clients_for_a_device_type_the_test_data_is_the_same(small, monkeypatch):
    tested = []
    for clients in (1, 4):
        heard, arrays = heard_clips(monkeypatch, Wakeword(clients=clients))
        split = np.concatenate([np.repeat([0, 1, 2], row) for row in arrays["counts"].sum(axis=2)])
        tested.append(sorted(clip for clip, k in zip(heard, split, strict=True) if k == 2))
    assert tested[0] == tested[1] != []


def test_samples_of_a_client_lie_in_the_order_of_their_states(small, monkeypatch):
    heard, arrays = heard_clips(monkeypatch, Wakeword())
    expected = [
        (device, state)
        for device, of_client in zip(DEVICES, arrays["counts"], strict=True)
        for of_split in of_client
        for state, count in zip(STATES, of_split, strict=True)
        for _ in range(count)
    ]
    assert [(device, state) for device, state, _ in heard] == expected
    fed = build(Wakeword())
    assert fed.truth["test_states"].tolist() == arrays["counts"][:, 2].tolist()
    states = states_tested(fed)
    assert len(states) == fed.sizes("test").sum()
    test_only = [state for place, (_, state) in zip(_splits(fed), expected, strict=True) if place == 2]
    assert states.tolist() == test_only


def _splits(fed):
    return np.concatenate([np.repeat([0, 1, 2], np.diff(row)) for row in fed.bounds])


def test_clients_are_named_after_their_type_which_is_their_group(small):
    fed = build(Wakeword(clients=2))
    assert fed.ids[:4] == ("A-1", "A-2", "B-1", "B-2") and fed.groups[:4] == ("A", "A", "B", "B")
    assert fed.x.shape[1:] == (1, 40, 98) and fed.classes == 2 and fed.name == "wakeword"
    assert build(QUICK).x.shape[1:] == (1, 8, 98)


def test_the_seed_decides_and_the_second_load_gives_the_same_from_the_cache(small, monkeypatch):
    first = build(QUICK, seed=1)
    monkeypatch.setattr("personafl_papers.data.wakeword.recorded", None)  # from the cache only
    again = build(QUICK, seed=1)
    assert again.fingerprint == first.fingerprint
    monkeypatch.undo()
    assert first.fingerprint != build(QUICK, seed=2).fingerprint
    monkeypatch.setenv("PERSONAFL_CACHE", str(small / "other"))
    assert build(QUICK, seed=1).fingerprint == first.fingerprint


def test_a_replaced_clip_is_noticed(folder):
    write_tree(folder / "speech_commands_v0.02")
    before = find_corpus("wakeword")
    file = folder / "speech_commands_v0.02" / "go" / "00000002_nohash_1.wav"
    file.write_bytes(wav(np.ones(2_000)))
    after = find_corpus("wakeword")
    constant = (after.clips().codes[:, 100:900] == after.clips().codes[:, 100:101]).all(axis=1)
    assert before.state != after.state and constant.sum() == 1


def test_other_words_are_thinned_and_a_note_says_so(small):
    fed = build(Wakeword(word="up", negatives=1))
    each = len(CLIPS) // 3
    held_out = fed.truth["test_states"][0, 0]
    assert fed.sizes("train").sum() + held_out == 2 * each
    assert fed.notes == (f"{each} of {2 * each} clips of other words left out: negatives = 1",)
    assert build(Wakeword(word="up", negatives=2)).notes == ()


def test_lots_are_dealt_in_proportion_whole():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 53, 478)
    shares = np.repeat([sum(row) for row in PAPER_SIZES.values()], 4)
    owner = deal(sizes, shares, rng)
    held = np.bincount(owner, weights=sizes, minlength=20)
    assert held == pytest.approx(sizes.sum() * shares / shares.sum(), abs=5)
    assert not np.array_equal(owner, deal(sizes, shares, np.random.default_rng(1)))
    assert set(deal(sizes, [1, 0], rng).tolist()) == {0}


def test_apportioned_numbers_add_up():
    for total in range(40):
        counts = apportioned(total, PAPER_SIZES["B"])
        ideal = total * np.array(PAPER_SIZES["B"]) / sum(PAPER_SIZES["B"])
        assert counts.sum() == total and (np.abs(counts - ideal) < 1).all()
    assert apportioned(100, PAPER_SIZES["A"])[2] == 0


@pytest.mark.parametrize(
    "make, kind, said",
    [
        (lambda: Wakeword(clients=0), ConfigError, "clients = 0 must be in 1 to 10000: it counts clients"),
        (lambda: Wakeword(negatives=0), ConfigError, "negatives = 0 must be in 1"),
        (lambda: Wakeword(test=0.0), ConfigError, "test = 0.0 must be in 0.01 to 100"),
        (lambda: Wakeword(test=float("nan")), ConfigError, "test = nan"),
        (lambda: Wakeword(validation=0.6), ConfigError, "validation = 0.6 must be in 0 to 0.5"),
        (lambda: Wakeword(mels=65), ConfigError, "mels = 65 must be in 1 to 64"),
        (lambda: build(Wakeword(word="alexa")), ConfigError, "word = 'alexa' must be one of .* there are go, up, zero"),
        (lambda: build(Wakeword(clients=30)), DataError, "clips of 40 people are too few for 150 clients: .* has none"),
        (lambda: build(Wakeword(), IID()), ConfigError, "'wakeword' comes with its own clients"),
        (lambda: build(Wakeword(), splits=(0.8, 0, 0.2)), ConfigError, "decides train and test itself"),
        (lambda: parse({"data": {"name": "wakeword", "words": 1}}), ConfigError, "unknown key 'data.words'"),
        (lambda: parse({"data": {"name": "wakeword", "clients": "4"}}), ConfigError, "data.clients = '4'"),
    ],
)
def test_mistakes_are_named(small, make, kind, said):
    with pytest.raises(kind, match=said) as told:
        make()
    assert "\n" not in str(told.value)


def test_a_federation_keeps_its_states_when_saved(small, tmp_path):
    fed = build(Wakeword())
    fed.save(tmp_path / "saved")
    assert states_tested(Federation.load(tmp_path / "saved")).tolist() == states_tested(fed).tolist()


# The real data, where it is.

REAL = Path(os.environ.get("PERSONAFL_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


@pytest.fixture
def real(monkeypatch):
    if not (REAL / "speech_commands_8khz_mulaw.npz").is_file():
        pytest.skip(
            "speech_commands_8khz_mulaw.npz is neither in the directory of PERSONAFL_DATA nor in ../shared/data"
        )
    monkeypatch.setenv("PERSONAFL_DATA", str(REAL))


def test_the_real_npz_has_5000_clips_of_9_words_by_478_people(real):
    found = find_corpus("wakeword").clips()
    assert found.codes.shape == (5_000, RATE) and len(set(found.speaker.tolist())) == 478
    words, counts = np.unique(found.word, return_counts=True)
    assert dict(zip(words.tolist(), counts.tolist(), strict=True)) == dict.fromkeys(
        ("down", "eight", "five", "go", "left", "one", "up", "zero"), 550
    ) | {"right": 600}


@pytest.mark.slow
def test_real_speech_divides_as_in_table_2_and_the_wake_word_can_be_heard(real):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    fed = build(Wakeword())
    train, paper = fed.truth["train_states"], np.array(list(PAPER_SIZES.values()))
    assert train == pytest.approx(train.sum() * paper / paper.sum(), abs=3)
    split = _splits(fed)
    pooled = np.concatenate([fed.x.mean(3).flatten(1).numpy(), fed.x.std(3).flatten(1).numpy()], axis=1)
    model = LogisticRegression(C=0.1, max_iter=1_000).fit(pooled[split == 0], fed.y.numpy()[split == 0])
    scores, y, state = model.decision_function(pooled[split == 2]), fed.y.numpy()[split == 2], states_tested(fed)
    heard = {name: roc_auc_score(y[state == name], scores[state == name]) for name in STATES}
    assert heard["normal"] > 0.85 and heard["normal"] > heard["playback"] > 0.7 and heard["alarm"] > 0.7
