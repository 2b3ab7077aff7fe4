"""Models × tasks as users would bring them: a network, its clients' data, and the task where these do not say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import personafl as pf
from tests.modules import networks

SIZES = (18, 12, 25)
"""Samples of each client: unequal, so that the last batches are padded on the stacked engine."""


@dataclass(frozen=True)
class Case:
    network: Callable[[], nn.Module]
    samples: Callable[[np.random.Generator, int], tuple[Any, Any]]
    task: str | None = None
    lr: float = 0.05
    needs: str | None = None
    loss: Callable[..., torch.Tensor] = F.cross_entropy

    def federation(self) -> pf.Federation:
        draws = np.random.default_rng(5)
        clients = {f"c{k}": self.samples(draws, n) for k, n in enumerate(SIZES)}
        return pf.Federation.from_clients(clients, splits=(0.6, 0.2, 0.2))


def images(channels: int, size: int, classes: int):
    def samples(draws, n):
        y = draws.permutation(np.arange(n) % classes)
        return draws.normal(size=(n, channels, size, size)).astype(np.float32) + y[:, None, None, None] / classes, y

    return samples


def masks(draws, n):
    y = draws.integers(0, 3, (n, 8, 8))
    y[:, 0, 0] = -100
    return (y[:, None] + draws.normal(size=(n, 1, 8, 8))).astype(np.float32), y


def tokens(draws, n):
    ids = draws.integers(1, 20, (n, 10))
    mask = (np.arange(10) < draws.integers(3, 11, (n, 1))).astype(np.int64)
    return {"ids": ids * mask, "mask": mask}, draws.permutation(np.arange(n) % 3)


def bert_tokens(draws, n):
    x, y = tokens(draws, n)
    return {"input_ids": x["ids"], "attention_mask": x["mask"]}, y


def tags(draws, n):
    x = draws.integers(0, 20, (n, 9))
    y = x % 4
    y[:, -1] = -100
    return x, y


def text(draws, n):
    x = draws.integers(0, 20, (n, 13))
    return x[:, :-1], x[:, 1:]


def windows(channels, length, classes):
    def samples(draws, n):
        y = draws.permutation(np.arange(n) % classes)
        return (draws.normal(size=(n, channels, length)) + y[:, None, None]).astype(np.float32), y

    return samples


def series(draws, n):
    return draws.normal(size=(n, 7, 5)).astype(np.float32), draws.permutation(np.arange(n) % 3)


def table(draws, n):
    x = {
        "numbers": draws.normal(size=(n, 4)).astype(np.float32),
        "categories": np.stack([draws.integers(0, 5, n), draws.integers(0, 3, n)], 1),
    }
    return x, draws.permutation(np.arange(n) % 3)


def labels_of_several_kinds(draws, n):
    x, _ = table(draws, n)
    y = draws.integers(0, 2, (n, 3))
    y[:2] = [[0, 1, 0], [1, 0, 1]]
    return x, y


def numbers(draws, n):
    x = draws.normal(size=(n, 6)).astype(np.float32)
    return x, (x.sum(1) + 0.1 * draws.normal(size=n)).astype(np.float32)


def survival(draws, n):
    x = draws.normal(size=(n, 6)).astype(np.float32)
    times = draws.exponential(np.exp(-x[:, 0]))
    events = draws.random(n) < 0.7
    return x, np.stack([times, events], 1).astype(np.float32)


def token_loss(outputs, y):
    return F.cross_entropy(outputs.transpose(1, 2), y)


def multilabel_loss(outputs, y):
    return F.binary_cross_entropy_with_logits(outputs, y.float())


def partial_likelihood(outputs, y):
    """Cox's, event by event."""
    risk, times, events = outputs.flatten(), y[:, 0], y[:, 1] > 0
    terms = [risk[times >= times[i]].logsumexp(0) - risk[i] for i in events.nonzero().flatten()]
    return torch.stack(terms).mean() if terms else torch.zeros(())


CASES = {
    "resnet18": Case(lambda: networks.ResNet18(4, width=4), images(3, 16, 4), lr=0.001),
    "resnet18-frozen": Case(lambda: networks.frozen_resnet18(4, width=4), images(3, 8, 4)),
    "mobilenetv2": Case(lambda: networks.MobileNetV2(4, width=4), images(3, 8, 4)),
    "convnext": Case(lambda: networks.ConvNeXt(4), images(3, 16, 4)),
    "vit": Case(lambda: networks.ViT(4), images(3, 16, 4)),
    "transformer": Case(networks.Encoder, tokens),
    "bert": Case(networks.small_bert, bert_tokens, needs="transformers"),
    "gru": Case(networks.GRUClassifier, series),
    "lstm-tagger": Case(networks.LSTMTagger, tags, "tagging", loss=token_loss),
    "unet": Case(networks.UNet, masks, "segmentation"),
    "character-lm": Case(networks.CharacterLM, text, "next-token", loss=token_loss),
    "sensor-cnn": Case(networks.SensorCNN, windows(3, 16, 4)),
    "tabular": Case(networks.TabularMLP, table),
    "multilabel": Case(networks.TabularMLP, labels_of_several_kinds, loss=multilabel_loss),
    "regression": Case(networks.Regressor, numbers, loss=F.mse_loss),
    "cox": Case(networks.CoxModel, survival, "cox", loss=partial_likelihood),
}
