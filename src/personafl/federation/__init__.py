"""The clients' data: `Federation`, how it is made of what people bring, checked, divided, saved and looked at."""

from personafl.federation.federation import Federation
from personafl.federation.splits import DEFAULT_SPLITS

__all__ = ["DEFAULT_SPLITS", "Federation"]
