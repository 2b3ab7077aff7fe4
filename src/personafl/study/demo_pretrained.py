"""The demo with a pretrained model: people who answer differently to the same sentences, so no single model is right.

A sentence is about one of six kinds of things, and whether a person likes it follows from its kind and the person's
group alone:

    group    likes
    first    spicy food, desserts, horror films
    second   romances, sports, gardens
    third    spicy food, horror films, sports
    fourth   desserts, romances, gardens

Each kind is liked by two groups of the same size and disliked by the other two: one model for everybody is right half
of the time, whatever it says. A person has answered few sentences, and others with the same taste have answered others;
nobody says who is alike. The sentences are made of 72 things and five ways to speak of them.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from personafl.algorithms import IFCA, Algorithm, FedAMP
from personafl.federation import Federation
from personafl.pretrained import Backbone, tokenized
from personafl.settings import EngineSettings, Local, Schedule
from personafl.streams import generator
from personafl.study.demo import mean_score
from personafl.study.launch import StudyRuns
from personafl.study.module_plan import Subject, module_plan
from personafl.study.plan import Plan

THINGS = {
    "spicy food": "chili con carne, vindaloo curry, kimchi stew, jalapeño poppers, hot chicken wings, Sichuan noodles, "
    "salsa with habaneros, pepper soup, a fiery ramen, sriracha tofu, a Thai curry, harissa lamb",
    "desserts": "chocolate cake, vanilla ice cream, apple pie, a cream puff, caramel pudding, strawberry tart, "
    "honey pancakes, a sugar doughnut, lemon cheesecake, a fruit sorbet, butter cookies, a milk chocolate mousse",
    "horror films": "a zombie film, a film about a haunted house, a slasher film, a vampire film, an exorcism film, "
    "a film with a masked killer, a ghost film, a werewolf film, a film about a cursed doll, a monster film, "
    "a film about demons, a film full of blood and screams",
    "romances": "a love story, a romantic comedy, a wedding film, a film about a first kiss, a novel of two lovers, "
    "a tender love song, a film about young love, a book of love letters, a romance in Paris, "
    "a film about a honeymoon, a story of a couple in love, a ballad about longing",
    "sports": "running shoes, a football match, a tennis racket, a gym membership, a marathon, swimming goggles, "
    "a basketball, a cycling tour, a pair of dumbbells, a climbing course, a rowing machine, a ski weekend",
    "gardens": "a rose bush, tomato seedlings, a watering can, a packet of flower seeds, pruning shears, a lawn mower, "
    "tulip bulbs, a compost bin, a herb garden, a greenhouse, a potted fern, an apple tree",
}
WAYS = (
    "They offer {}.",
    "Tonight there is {}.",
    "My neighbour told me about {}.",
    "The shop on the corner advertises {}.",
    "What about {} this weekend?",
)
LIKES = {
    "first": ("spicy food", "desserts", "horror films"),
    "second": ("romances", "sports", "gardens"),
    "third": ("spicy food", "horror films", "sports"),
    "fourth": ("desserts", "romances", "gardens"),
}
PEOPLE, ANSWERS = 40, 20
SPLITS = (0.4, 0.2, 0.4)

WEIGHTS = (
    "a folder with config.json, model.safetensors and tokenizer.json, such as all-MiniLM-L6-v2 from "
    "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2"
)


def sentences() -> list[tuple[str, str]]:
    """All sentences with the kind of thing that each is about."""
    listed = [(kind, thing) for kind, things in THINGS.items() for thing in things.split(", ")]
    return [(way.format(thing), kind) for (kind, thing), way in product(listed, WAYS)]


def answers(seed: int) -> dict[str, tuple[str, tuple[list[str], list[int]]]]:
    """Each person's group, sentences and answers: 1 is liked."""
    known, groups = sentences(), list(LIKES)
    out = {}
    for k in range(PEOPLE):
        group = groups[k % len(groups)]
        drawn = generator(seed, "tastes", k).choice(len(known), ANSWERS, replace=False)
        asked = [known[i] for i in drawn]
        out[f"person-{k}"] = group, ([text for text, _ in asked], [int(kind in LIKES[group]) for _, kind in asked])
    return out


def people(backbone: Backbone, seed: int) -> Federation:
    """The federation of a seed, as features."""
    found = answers(seed)
    data = tokenized({person: each for person, (_, each) in found.items()}, backbone)
    groups = {person: group for person, (group, _) in found.items()}
    made = Federation.from_clients(data, groups=groups, splits=SPLITS, seed=seed, name="tastes")
    return made.through(backbone)


def demo_plan(backbone: Backbone, rounds: int, seed: int, seeds: int) -> Plan:
    """The comparison that the demo runs: alone, one model for all, and two methods that find out who is alike."""
    width = backbone.features(_tensors(backbone.tokenize([sentences()[0][0]]))).shape[1]
    subject = Subject(
        partial(people, backbone), lambda seed: nn.Linear(width, 2), None, None, None,
        Schedule(rounds=rounds, eval_every=max(1, rounds // 10)), Local(lr=0.3, steps=10, batch_size=8),
        EngineSettings(name="stacked", threads=1), None, None,
    )  # fmt: skip
    methods: list[Algorithm | str] = [IFCA(clusters=len(LIKES)), FedAMP(), "fedavg", "separate"]
    return module_plan(subject, methods, tuple(range(seed, seed + seeds)), {}, 1, False)


def _tensors(tokens: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in tokens.items()}


def sentence(found: StudyRuns) -> str:
    """What the table means, in words, from its numbers."""
    alone, together = (mean_score(found, method, "personal_accuracy") for method in ("separate", "ifca"))
    amp, one = mean_score(found, "fedamp", "personal_accuracy"), mean_score(found, "fedavg", "global_accuracy")
    return (
        f"People answer differently to the same sentences, each kind of which half of them like: FedAvg's one model "
        f"for everybody is right in {one:.1%}, and none could be right in more than about half. Training alone on a "
        f"pretrained model's features, people get {alone:.1%}; with ifca, which finds {len(LIKES)} groups, "
        f"{together:.1%}, with fedamp {amp:.1%}. Nobody was told who is alike."
    )
