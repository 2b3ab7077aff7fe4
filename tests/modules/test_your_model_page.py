"""docs/your-model.md: its code runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "your-model.md"


def test_the_code_of_the_page_runs(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S):
        exec(block, names)
    assert not names["net"].training
    assert float(names["net"].features[1].running_var.min()) > 0
    assert "BatchNorm1d" in capsys.readouterr().out
