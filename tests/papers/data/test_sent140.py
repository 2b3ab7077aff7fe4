"""Facts about sent140: tweets in their published format become token ids, and a run on them needs them no more."""

import gzip
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import personafl as pf
from personafl.config import parse
from personafl.data import IID, Natural, build
from personafl.errors import ConfigError, DataError, RunError
from personafl.jobs import train_config
from personafl_papers.data import sent140
from personafl_papers.data.sent140 import ARCHIVE, SMALL, TWEETS, Sent140
from personafl_papers.data.text import Vocabulary
from personafl_papers.data.vectors import GLOVE

# Six columns, all quoted, no header, Latin-1, as the file of 1.6 million tweets begins.
ORIGINAL = (
    b'"0","1467810672","Mon Apr 06 22:19:49 PDT 2009","NO_QUERY","scotthamilton","is upset that he can\'t update"\n'
    b'"0","1467810917","Mon Apr 06 22:19:53 PDT 2009","NO_QUERY","mattycus","@Kenichan I dived, dived caf\xe9 "\n'
    b'"4","1467822272","Mon Apr 06 22:22:45 PDT 2009","NO_QUERY","12345","good good day &amp; night"\n'
    b'"2","1467822273","Mon Apr 06 22:22:46 PDT 2009","NO_QUERY","12345","neither, nor"\n'
    b'"4","1467822274","Mon Apr 06 22:22:47 PDT 2009","NO_QUERY","scotthamilton","is, well, good"\n'
)
SMALL_ROWS = (
    'target,user,date,text\n0,1,Mon Apr 06,"he can\'t, update"\n4,2,Mon Apr 06,good day\n4,1,Tue Apr 07,café!\n'
).encode()
GLOVE_TEXT = b", 1 2\nnot 3 4\ngood 5 6\ncaf\xc3\xa9 7 8\nis 9 10\nunused 0 0\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data directory with a few word vectors, and an empty cache beside it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mini.txt").write_bytes(GLOVE_TEXT)
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def loaded(**settings):
    return Sent140(**({"vectors": "mini.txt", "tokens": 6} | settings)).load(0)


def write_archive(file, member=TWEETS, content=ORIGINAL):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", b'"2","3","Mon","stanford","x","a neutral tweet"\n')
        archive.writestr(member, content)


def write(folder, form):
    if form == "zip":
        write_archive(folder / ARCHIVE.file)
    elif form == "gz":
        (folder / f"{TWEETS}.gz").write_bytes(gzip.compress(ORIGINAL))
    else:
        (folder / TWEETS).write_bytes(ORIGINAL)


@pytest.mark.parametrize("form", ["zip", "gz", "csv"])
def test_tweets_become_numbers_of_their_words(folder, form):
    write(folder, form)
    samples = loaded()
    words = Vocabulary.from_array(samples.tables["vocabulary"]).words
    assert words == (",", "good", "is", "not", "café")  # the most frequent first, then as they come
    table = samples.tables["embedding"]
    assert table.dtype == np.float32
    assert table.tolist() == [[0, 0], [1, 2], [5, 6], [9, 10], [3, 4], [7, 8]]
    assert samples.x.tolist() == [
        [3, 0, 0, 0, 0, 4],  # is upset that he can not | update
        [0, 0, 1, 0, 5, 0],  # i dived , dived café
        [2, 2, 0, 0, 0, 0],  # good good day night
        [3, 1, 0, 1, 2, 0],  # is , well , good
    ]
    assert samples.y.tolist() == [0, 0, 1, 1] and samples.classes == 2
    assert samples.clients.tolist() == ["scotthamilton", "mattycus", "user-12345", "scotthamilton"]
    assert samples.notes == ("data sent140: tweets left out: 1 neutral",)


def test_the_vocabulary_encodes_a_text_as_the_data_was(folder):
    write(folder, "csv")
    samples = loaded()
    vocabulary = Vocabulary.from_array(samples.tables["vocabulary"])
    assert vocabulary.encode(["is, well, good"], tokens=6).tolist() == samples.x[3:].tolist()


def test_the_small_layout_is_read_too(folder):
    (folder / f"{SMALL}.gz").write_bytes(gzip.compress(SMALL_ROWS))
    samples = loaded()
    assert samples.clients.tolist() == ["user-1", "user-2", "user-1"] and samples.notes == ()
    words = ("", *Vocabulary.from_array(samples.tables["vocabulary"]).words)
    assert [[words[token] for token in row if token] for row in samples.x] == [["not", ","], ["good"], ["café"]]


def test_the_whole_data_set_is_preferred_to_the_small_one(folder):
    (folder / SMALL).write_bytes(SMALL_ROWS)
    assert len(loaded().y) == 3
    write(folder, "zip")
    assert len(loaded().y) == 4


def test_a_tweet_counts_once_and_not_at_all_under_both_labels(folder):
    one, other = b"4,1,Mon,good day\n", b"0,1,Mon,is that not good\n"
    rows = [one, other, one, b"0,1,Tue,good day\n", b"4,1,Mon,is that not good\n", b"0,2,Mon,good day\n", one]
    (folder / SMALL).write_bytes(b"target,user,date,text\n" + b"".join(rows))
    samples = loaded()
    assert samples.y.tolist() == [1, 0, 0] and samples.clients.tolist() == ["user-1", "user-1", "user-2"]
    assert samples.notes == ("data sent140: tweets left out: 1 under both labels, 2 repeated",)
    assert Vocabulary.from_array(samples.tables["vocabulary"]).words == ("good",)


def test_the_second_load_reads_neither_tweets_nor_vectors(folder, monkeypatch):
    write(folder, "csv")
    first = loaded()

    def never(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(sent140, "opened", never)
    second = loaded()
    for what in ("x", "y", "clients"):
        assert np.array_equal(getattr(first, what), getattr(second, what))
    assert first.notes == second.notes
    assert np.array_equal(first.tables["embedding"], second.tables["embedding"])
    with pytest.raises(AssertionError):
        loaded(tokens=5)


@pytest.mark.parametrize(
    "content, said",
    [
        (b'"0","1","Mon","NO_QUERY","ann"\n', "line 1 has 5 columns, expected target, id, date, query, user, text"),
        (b"target,user,date,text\n0,1,Mon\n", "line 2 has 3 columns, expected target, user, date, text"),
        (ORIGINAL + b'"1","1","Mon","Q","ann","x"\n', "line 6: the label '1' must be 0, 2 or 4"),
        (b'"0","1","Mon","Q","","x"\n', "line 1: the user '' must have 1 to 64 letters"),
        (b'"0","1","Mon","Q","' + b"a" * 65 + b'","x"\n', "line 1: the user 'aaaaaaaaaaaaaaaaaaaa' must have 1 to 64"),
        (b"target,user,date,text\n0,1,Mon,caf\xe9\n", "cannot read .*: 'utf-8' codec can't decode"),
        (b'"2","1","Mon","Q","ann","x"\n', "holds no positive or negative tweet"),
        (b"", "holds no positive or negative tweet"),
        (b"target,user,date,text\n", "holds no positive or negative tweet"),
        (
            b'"0","1","Mon","Q","ann","x\n' + (b"y" * 60_000 + b"\n") * 3,
            "line [34]: field larger than",
        ),
        (b'"' + b"x" * 70_000, "line 1 is longer than"),
        (gzip.compress(ORIGINAL)[:-9], "cannot read .*; get the file again"),
        (b'"4","1","Mon","Q","ann","nothing known"\n', "has no vector for any of the 2 words of the data"),
    ],
)
def test_wrong_files_are_refused_in_one_line(folder, content, said):
    (folder / TWEETS).write_bytes(content)
    with pytest.raises(DataError, match=said) as raised:
        loaded()
    assert "\n" not in str(raised.value)


def test_a_zip_without_the_tweets_is_refused(folder):
    write_archive(folder / ARCHIVE.file, member=f"../{TWEETS}")
    with pytest.raises(DataError, match=f"{ARCHIVE.file} has no {TWEETS}; get the file again"):
        loaded()


def test_more_tweets_than_there_can_be_are_refused(folder, monkeypatch):
    write(folder, "csv")
    monkeypatch.setattr(sent140, "MOST_TWEETS", 3)
    with pytest.raises(DataError, match="holds more than 3 tweets"):
        loaded()


def test_what_is_missing_is_said(folder):
    with pytest.raises(DataError) as raised:
        loaded()
    for part in (ARCHIVE.file, TWEETS, SMALL, ARCHIVE.url, str(folder)):
        assert part in str(raised.value)
    write(folder, "csv")
    with pytest.raises(
        DataError, match=r"glove, the word vectors of sent140, is not in .*put glove\.6B\.300d\.txt"
    ) as raised:
        loaded(vectors="auto")
    assert GLOVE.url in str(raised.value)


def test_mistakes_in_settings_are_named():
    with pytest.raises(ConfigError, match="tokens = 0 must be in 1 to 280"):
        Sent140(tokens=0)
    with pytest.raises(ConfigError, match=r"data\.tokens = '25'"):
        parse({"data": {"name": "sent140", "tokens": "25"}})


def test_users_are_the_clients_unless_a_partition_is_given(folder):
    write(folder, "csv")
    source = Sent140(vectors="mini.txt", tokens=6)
    natural = build(source)
    assert natural.ids == ("mattycus", "scotthamilton", "user-12345") and natural.x.dtype == torch.int64
    assert sorted(natural.tables) == ["embedding", "vocabulary"]
    assert build(source, Natural(least=2)).ids == ("scotthamilton",)
    dealt = build(source, IID(clients=2))
    assert dealt.ids == ("client-0", "client-1") and dealt.tables["embedding"].equal(natural.tables["embedding"])


def many_tweets(users=6, each=8):
    """Users whose good tweets say good; half of the users mean the opposite of what they say."""
    rng = np.random.default_rng(0)
    rows = ["target,user,date,text"]
    for user in range(users):
        for number in range(each):
            said = rng.choice([0, 4])
            words = " ".join(rng.permutation(["good" if said else "not", "is", ",", "other"]))
            rows.append(f'{said if user % 2 else 4 - said},{user},"second {number}","{words}"')
    return "\n".join(rows).encode()


CONFIG = {
    "rounds": 2, "checkpoint_every": 1, "data": {"name": "sent140", "vectors": "mini.txt", "tokens": 5},
    "partition": {"name": "natural", "least": 3}, "model": {"name": "lstm", "hidden": 3, "layers": 1},
    "algorithm": "ditto", "local": {"lr": 0.5, "batch_size": 4, "steps": 3}, "engine": {"name": "loop", "threads": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two rounds, one of three, and their federation; their data is gone."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_DATA", str(place))
        patch.setenv("PERSONAFL_CACHE", str(place / "cache"))
        (place / "mini.txt").write_bytes(GLOVE_TEXT)
        (place / SMALL).write_bytes(many_tweets())
        short = train_config(parse(CONFIG), place / "short")
        long = train_config(parse(CONFIG | {"rounds": 3}), place / "long")
        federation = parse(CONFIG).federation()
    for file in ("mini.txt", SMALL):
        (place / file).unlink()
    shutil.rmtree(place / "cache")
    return short, long, federation


def test_a_run_can_be_used_without_its_data(trained):
    run, _, fed = trained
    found = pf.load(run.path)
    assert found.tables.keys() == fed.tables.keys()
    assert all(found.tables[what].equal(fed.tables[what]) for what in fed.tables)
    for client in fed.ids:
        x = fed.client(client)["test"][0]
        assert found.personal(client)(x).equal(run.personal(client)(x))


def test_a_newcomer_brings_texts(trained):
    run = pf.load(trained[0].path)
    vocabulary = Vocabulary.from_array(run.tables["vocabulary"])
    x = vocabulary.encode(["this is good", "is not", "good, other", "not good"], tokens=5)
    answers = [of.personalize(x, [1, 0, 1, 0])(torch.from_numpy(x)) for of in (run, trained[0])]
    assert answers[0].equal(answers[1]) and answers[0].shape == (4, 2)
    rows = len(run.tables["embedding"])
    with pytest.raises(DataError, match=rf"x outside 0\.\.{rows - 1}, .* in 1 client: newcomer \(1 value\)"):
        run.personalize([[0, 1, rows, 0, 0]], [1])
    with pytest.raises(DataError, match=r"x is torch\.float32; with a table 'embedding' it must be integers"):
        run.personalize([[0.0] * 5], [1])


def test_a_run_goes_on_to_where_a_longer_one_gets(trained, tmp_path):
    run, long, fed = trained
    copied = shutil.copytree(run.path, tmp_path / "copied")
    other = fed.tables | {"embedding": fed.tables["embedding"] * 2}
    with pytest.raises(RunError, match="the data is not the same as when"):
        train_config(parse(CONFIG), copied, resume=True, federation=replace(fed, tables=other))
    (copied / "models/tables.safetensors").unlink()
    resumed = train_config(parse(CONFIG | {"rounds": 3}), copied, resume=True, federation=fed)
    for client in fed.ids:
        x = fed.client(client)["test"][0]
        assert resumed.personal(client)(x).equal(long.personal(client)(x))
    written = [path / "models/tables.safetensors" for path in (copied, run.path)]
    assert written[0].read_bytes() == written[1].read_bytes()


def test_damaged_tables_of_a_run_are_named(trained, tmp_path):
    copied = shutil.copytree(trained[0].path, tmp_path / "copied")
    file = copied / "models/tables.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunError, match=r"tables\.safetensors is damaged: it does not match its checksum"):
        pf.load(copied).personal("user-1")


# The real data, where it is.

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
REAL = Path(os.environ.get("PERSONAFL_DATA") or SHARED)


@pytest.fixture(scope="module")
def real():
    for file in ("sent140.csv.gz", "glove6B_100d.npz"):
        if not (REAL / file).is_file():
            pytest.skip(f"{file} is neither in the directory of PERSONAFL_DATA nor in ../shared/data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_DATA", str(REAL))
        yield Sent140(vectors="glove.6B.100d.txt").load(0)


def test_the_real_tweets_are_all_there(real):
    assert real.x.shape == (62_355, 25) and np.bincount(real.y).tolist() == [29_301, 33_054]
    _, tweets = np.unique(real.clients, return_counts=True)
    assert len(tweets) == 53_449 and (tweets >= 3).sum() == 1_534
    assert real.notes == ()


def test_most_of_the_real_words_have_a_vector(real):
    table, words = real.tables["embedding"], Vocabulary.from_array(real.tables["vocabulary"]).words
    assert table.shape == (len(words) + 1, 100) and not table[0].any() and table[1:].any(axis=1).all()
    assert words[:6] == (".", "!", "to", "the", ",", "my") and np.bincount(real.x.ravel())[1:].argmax() == 0
    assert np.array_equal(np.unique(real.x), np.arange(len(table)))
    assert (real.x > 0).sum() == pytest.approx(811_000, abs=2_000)


def test_the_mood_of_a_tweet_can_be_learned_from_the_mean_of_its_vectors(real):
    x, y = np.asarray(real.x[::4]), real.y[::4]
    means = real.tables["embedding"][x].sum(axis=1) / np.maximum((x > 0).sum(axis=1, keepdims=True), 1)
    features = np.column_stack([means, np.ones(len(means))])
    train = np.arange(len(means)) % 5 > 0
    weight = np.linalg.lstsq(features[train], 2 * y[train] - 1.0, rcond=None)[0]
    assert ((features[~train] @ weight > 0) == y[~train]).mean() > 0.68
