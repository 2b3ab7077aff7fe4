"""Sent140 on MiniLM's features: the splits of the table from scratch, and a small run with a stand-in for MiniLM."""

import gzip

import numpy as np
import pytest
import torch

from personafl.config import parse
from personafl.errors import ConfigError
from personafl.study.launch import in_process
from personafl_papers.data.sent140 import Sent140
from personafl_papers.tables import selffl_sent140, selffl_sent140_minilm
from personafl_papers.tables.availability import MINILM, available
from personafl_papers.tables.runs import run_stages
from personafl_papers.tables.table import Found

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "day", "night", "so", "very"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data directory with tweets of 40 users, a word vector or two, and a tiny BERT in place of MiniLM."""
    transformers = pytest.importorskip("transformers", reason="needs personafl[huggingface]")
    data = tmp_path / "data"
    data.mkdir()
    draws = np.random.default_rng(0)
    rows = ["target,user,date,text"]
    for user in range(40):
        for second in range(5):
            words = " ".join(draws.choice(WORDS[4:], 4))
            rows.append(f"{4 * int('good' in words)},{user},Mon {second},{words}")
    (data / "sent140.csv.gz").write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    (data / "glove.6B.50d.txt").write_text("\n".join(f"{word} {' '.join(['0.1'] * 50)}" for word in WORDS[4:]) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(data / MINILM)
    (data / MINILM / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(data / MINILM / "vocab.txt"), model_max_length=12).save_pretrained(data / MINILM)
    monkeypatch.setenv("PERSONAFL_DATA", str(data))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return data


def test_tweets_users_and_splits_are_those_from_scratch(folder):
    words = parse({**selffl_sent140.config(True, 1), "seed": 1}).federation()
    features = parse({**selffl_sent140_minilm.config(True), "seed": 1}).federation()
    assert features.ids == words.ids and features.x.shape == (len(words.y), 8)
    assert torch.equal(features.y, words.y) and np.array_equal(features.bounds, words.bounds)


def test_tokens_are_those_of_each_tweet(folder):
    made = Sent140(tokens=5, tokenizer=str(folder / MINILM)).load(0)
    first = gzip.decompress((folder / "sent140.csv.gz").read_bytes()).decode().splitlines()[1].split(",")[3]
    assert made.x["input_ids"][0].tolist() == [2, *(WORDS.index(word) for word in first.split()[:3]), 3]
    assert made.x["attention_mask"].min() == 1 and made.constants == {}
    with pytest.raises(ConfigError, match="there is no tokenizer in this folder"):
        Sent140(tokenizer=str(folder)).load(0)


def test_a_row_for_each_method_and_the_majority(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(selffl_sent140_minilm, "METHODS", {"fedavg": {}, "separate": {}})
    found = Found(quick=True)
    run_stages(selffl_sent140_minilm.TABLE.stages, found, tmp_path / "runs", in_process)
    numbers = selffl_sent140_minilm.measure(found).numbers[selffl_sent140_minilm.PART]
    assert set(numbers) == {"FedAvg", "alone", selffl_sent140.MAJORITY}
    assert set(numbers["FedAvg"]) == {selffl_sent140.TEST, selffl_sent140.GLOBAL}
    assert found.chosen(selffl_sent140_minilm.SEARCH, "fedavg")["local.lr"] in selffl_sent140_minilm.FINE[0].values


def test_every_method_can_be_planned_and_has_a_row():
    shared, distilled = (plan.checked() for _, plan in selffl_sent140_minilm.heads(Found(quick=True)))
    assert {*shared.methods, *distilled.methods} == set(selffl_sent140_minilm.ROWS)
    assert distilled.job("persfl", 0).config.splits == (0.6, 0.2, 0.2), "it chooses on validation data"
    assert {len(search) for search in (shared.seeds, distilled.seeds)} == {2}
    [(_, searched)] = selffl_sent140_minilm.search(Found())
    for method, axes in searched.axes.items():
        for end in (0, -1):
            searched.plan.trial(method, 0, {axis.key: axis.values[end] for axis in axes})


def test_the_table_is_not_offered_without_the_weights(folder):
    assert available("minilm")
    (folder / MINILM / "model.safetensors").unlink()
    assert not available("minilm")
