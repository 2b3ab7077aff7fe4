"""A place for the files of data sets."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data directory, and an empty cache beside it."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"
