"""docs/pretrained.md: the code at its beginning runs, and its configs are read."""

import re
import tomllib
from pathlib import Path

from personafl.config import parse
from personafl.pretrained import PretrainedModel

PAGE = (Path(__file__).parents[2] / "docs" / "pretrained.md").read_text("utf-8")


def test_the_code_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path))
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.S)[0], names)
    assert isinstance(names["newcomer"], PretrainedModel) and names["features"].x.shape == (120, 16)
    assert "torch.Size([1, 3])" in capsys.readouterr().out


def test_its_config_is_read():
    config = parse(tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.S)[0]))
    assert config.backbone is not None and config.backbone.batch_size == 64 and config.model is None
