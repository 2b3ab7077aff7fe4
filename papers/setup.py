"""The version, from the one place where it is written."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
# A source archive has no personafl beside it, but says its version itself.
WRITTEN = [
    (HERE / "PKG-INFO", r"^Version: (.+)$"),
    (HERE.parent / "src/personafl/version.py", r'^__version__ = "(.+)"$'),
]

for file, line in WRITTEN:
    if file.exists() and (found := re.search(line, file.read_text("utf-8"), re.MULTILINE)):
        setup(version=found[1], install_requires=[f"personafl=={found[1]}"])
        break
else:
    raise SystemExit(f"no version is written in {' or '.join(str(file) for file, _ in WRITTEN)}")
