"""The same place for the files of data sets as `tests/data` has."""

from tests.data.conftest import folder

__all__ = ["folder"]
