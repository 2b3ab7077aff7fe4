"""The page is one file that loads nothing, and what users wrote is text in it."""

import base64
import json
import re
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest

from personafl.report import page, report_data
from tests.report.folders import IDS, compared, written


class Elements(HTMLParser):
    """Tags with their attributes, and the text inside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self._open = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs).get("id"), dict(attrs).get("type")) if tag in ("script", "style") else None
        if self._open:
            self.inside[self._open] = ""

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.inside[self._open] += data


def data_of(text):
    return json.loads(Elements(text).inside["script", "data", "application/json"])


def test_the_block_of_data_is_what_was_made(tmp_path):
    found = report_data([compared(tmp_path)])
    assert data_of(page(found)) == json.loads(json.dumps(found))


def test_nothing_from_outside_is_named(tmp_path):
    text = page(report_data([compared(tmp_path)]))
    allowed = {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\"'\s]*", text)) <= allowed
    for tag, attributes in Elements(text).tags:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag


def test_the_policy_allows_this_script_and_this_style_only(tmp_path):
    text = page(report_data([compared(tmp_path)]))
    found = Elements(text)
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    for kind in ("script", "style"):
        inside = found.inside[kind, None, None]
        digest = base64.b64encode(sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "connect-src 'none'" in policy and "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize(
    "evil", ["</script><script>alert(1)</script>", "</script x", "<!--<script>", "&lt;b&gt;", '"\u2028', "\udc80"]
)
def test_no_name_can_leave_the_block_of_data(tmp_path, evil):
    data = report_data([written(tmp_path / "run").path])
    data["title"] = data["methods"][0]["name"] = data["federations"][0]["ids"][0] = evil
    text = page(data)
    text.encode()
    assert data_of(text)["federations"][0]["ids"][0] == evil
    assert sum(tag == "script" for tag, _ in Elements(text).tags) == 2
    block = text.split('id="data">')[1].split("</script>\n<script>")[0]
    assert json.loads(block)["title"] == evil and not set("<>&") & set(block)


def test_ids_of_the_data_are_escaped_in_the_file(tmp_path):
    text = page(report_data([written(tmp_path / "run").path]))
    assert "<script>alert(1)" not in text
    assert IDS[2] in data_of(text)["federations"][0]["ids"]


def test_a_thousand_clients_six_methods_and_five_seeds_stay_below_five_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"client-{m}" for m in range(1000)]
    n = np.resize([10, 20, 10, 0], 1000)
    for seed in range(5):
        for method in ("selffl", "ditto", "fedamp", "persfl", "separate", "fedavg"):
            columns = (
                {name: rng.random(1000, np.float32) for name in ("sigma2", "gain")} if method == "selffl" else None
            )
            correct = [rng.integers(0, n + 1) for _ in range(2)]
            written(tmp_path / f"{method}{seed}", method, seed, correct, rng.integers(0, n + 1), ids, columns=columns)
    found = report_data([tmp_path])
    assert len(found["runs"]) == 30 and all(len(v["personal"]) == 1000 for v in found["values"])
    assert len(page(found)) < 2_500_000  # of 5; the rest is for what these folders lack: matrices and classes
