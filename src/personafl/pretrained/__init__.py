"""Pretrained models: frozen backbones, where their weights come from, and the tokens of texts for them."""

from personafl.pretrained.backbone import Backbone, Pooling, PretrainedModel, Raw
from personafl.pretrained.loading import BackboneSettings, Kind, load
from personafl.pretrained.texts import tokenized

__all__ = ["Backbone", "BackboneSettings", "Kind", "Pooling", "PretrainedModel", "Raw", "load", "tokenized"]
