"""Facts about the demo with a pretrained model, with a small stand-in for the weights."""

from collections import Counter
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from personafl.cli.demo import _plan
from personafl.comparison import run_comparison
from personafl.errors import ConfigError
from personafl.pretrained import Backbone
from personafl.study import demo_pretrained as demo

VOCABULARY, WIDTH = 4096, 384


class Hashed:
    """Words as numbers, by their hash; the first of them is padding."""

    model_max_length = 32

    def __call__(self, texts, **settings):
        words = [[self.number(word) for word in text.lower().strip(".?").split()] for text in texts]
        ids = np.zeros((len(words), max(map(len, words))), np.int64)
        for row, found in zip(ids, words, strict=True):
            row[: len(found)] = found
        return {"input_ids": ids, "attention_mask": ids > 0}

    @staticmethod
    def number(word):
        return 1 + int.from_bytes(blake2b(word.encode(), digest_size=4).digest()) % (VOCABULARY - 1)


class Bag(nn.Module):
    """A frozen random vector for each word, and their mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.vectors = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, input_ids, attention_mask):
        return (self.vectors(input_ids) * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        backbone = Backbone(Bag(), tokenizer=Hashed())
        yield run_comparison(demo.demo_plan(backbone, 12, 0, 1), tmp_path_factory.mktemp("runs") / "demo")


def test_each_kind_is_liked_by_half_of_the_people():
    liked = Counter(kind for kinds in demo.LIKES.values() for kind in kinds)
    assert set(liked) == set(demo.THINGS) and set(liked.values()) == {len(demo.LIKES) / 2}
    groups = Counter(group for group, _ in demo.answers(0).values())
    assert len(set(groups.values())) == 1 and sum(groups.values()) == demo.PEOPLE


def test_the_sentences_are_distinct_and_a_person_is_asked_each_once():
    texts = [text for text, _ in demo.sentences()]
    assert len(set(texts)) == len(texts) == 360
    answers = demo.answers(3)
    assert all(len(set(asked)) == demo.ANSWERS for _, (asked, _) in answers.values())
    said = {(text, label) for _, (asked, labels) in answers.values() for text, label in zip(asked, labels, strict=True)}
    both = [text for text in texts if {(text, 0), (text, 1)} <= said]
    assert len(both) > 100, "people answer differently to the same sentence"


def test_no_single_model_is_right_and_those_with_the_same_taste_help(found):
    accuracy = {row["label"]: row["accuracy"] for row in found.table()}
    assert accuracy["fedavg, global model"] < 0.6
    assert accuracy["fedamp"] > accuracy["fedavg, global model"] + 0.05
    assert set(found.methods) == {"ifca", "fedamp", "fedavg", "separate"}


def test_the_sentence_has_the_numbers_and_the_report_is_written(found):
    alone = found.methods["separate"][0].score["personal_accuracy"]
    assert f"people get {alone:.1%}; with ifca, which finds 4 groups" in demo.sentence(found)
    assert found.report().stat().st_size > 10_000


def test_it_says_where_weights_come_from():
    with pytest.raises(ConfigError, match=r"needs --weights FOLDER: a folder with config\.json.*all-MiniLM-L6-v2"):
        _plan("pretrained", None, 1, 0, 1)
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        _plan("pretrained", Path("nowhere"), 1, 0, 1)
    with pytest.raises(ConfigError, match="personafl demo pretrained"):
        _plan("digits", Path("nowhere"), 1, 0, 1)
