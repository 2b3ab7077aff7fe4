"""docs/pretrained.md: its config is read. tests/docs/test_code.py runs its code."""

import re
import tomllib
from pathlib import Path

from personafl.config import parse

PAGE = (Path(__file__).parents[2] / "docs" / "pretrained.md").read_text("utf-8")


def test_its_config_is_read():
    config = parse(tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.S)[0]))
    assert config.backbone is not None and config.backbone.batch_size == 64 and config.model is None
