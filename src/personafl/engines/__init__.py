"""Engines: who runs the clients. The algorithm does not know which one does."""

from personafl.engines.auto import ENGINES, Choice, make_engine
from personafl.engines.base import Engine
from personafl.engines.work import Result, Work

__all__ = ["ENGINES", "Choice", "Engine", "Result", "Work", "make_engine"]
