"""Facts about downloads, on a server of the test's own: what arrives is whole and right, or is not there."""

import gzip
import hashlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import personafl.data
from personafl.data.fetch import Remote, fetch
from personafl.data.images import FMNIST_FILES, IDX_FILES, MNIST_FILES
from personafl.data.sources.emnist import REMOTE as EMNIST
from personafl.errors import DataError
from tests.waiting import until

CONTENT = bytes(range(256)) * 2000
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    """Answers by the path: /slow, /held, /endless, /short, /gzip, /missing, anything else at once."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers["User-Agent"]))
        self.content = self.server.files.get(self.path, self.server.content)
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path.startswith("/gzip"):
            self.send_header("Content-Encoding", "x-gzip")
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        with suppress(OSError):  # the other side has heard enough
            self.send()

    def send(self):
        content, path = self.content, self.path
        if path == "/slow":
            for start in range(0, len(content), len(content) // 8):
                self.wfile.write(content[start : start + len(content) // 8])
                time.sleep(0.1)
        elif path == "/endless":
            while not self.server.stopping:
                self.wfile.write(bytes(1 << 16))
                self.server.sent += 1 << 16
        elif path == "/held":
            self.wfile.write(content[: len(content) // 2])
            while not self.server.stopping:
                time.sleep(0.02)
        elif path == "/short":
            self.wfile.write(content[: len(content) // 2])
        else:
            self.wfile.write(content)

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.content, found.files, found.asked, found.sent, found.stopping = CONTENT, {}, [], 0, False
    thread = threading.Thread(target=found.serve_forever, args=[0.02])
    thread.start()
    yield found
    found.stopping = True
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("PERSONAFL_OFFLINE")
    monkeypatch.delenv("PERSONAFL_DATA", raising=False)
    return tmp_path / "cache"


def remote(server, path, checksum=SHA256, file="letters/file.bin", megabytes=0.512):
    return Remote(file, f"http://127.0.0.1:{server.server_port}{path}", checksum, megabytes)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_the_cache_lacks_is_downloaded_once(server, cache):
    md5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    wanted = [remote(server, "/a"), remote(server, "/b", md5, "other/b")]
    for _ in range(2):
        paths = fetch("mine", wanted, "two files")
        assert paths == [cache / "letters/file.bin", cache / "other/b"]
        assert all(path.read_bytes() == CONTENT for path in paths)
    assert [path for path, _ in server.asked] == ["/a", "/b"]
    assert all(agent.startswith("personafl/") for _, agent in server.asked)
    assert sorted(files(cache)) == sorted(paths)
    paths[0].unlink()
    assert fetch("mine", wanted, "two files")[0].read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/a", "/b", "/a"]


def test_a_gz_file_arrives_as_it_is_stored_though_the_server_calls_it_an_encoding(server, cache):
    server.content = gzip.compress(CONTENT)
    checksum = f"sha256:{hashlib.sha256(server.content).hexdigest()}"
    (path,) = fetch("mine", [remote(server, "/gzip/file.gz", checksum)], "a file")
    assert path.read_bytes() == server.content


def test_a_data_set_that_is_nowhere_is_downloaded_and_read(server, cache):
    """Four small files with the names of MNIST's, from a mirror of the test's own."""
    images, labels = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28), np.array([3, 1, 4], np.uint8)
    remotes = []
    for name in IDX_FILES:
        array = images if "images" in name else labels
        packed = gzip.compress(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())
        server.files[f"/{name}.gz"] = packed
        checksum = f"sha256:{hashlib.sha256(packed).hexdigest()}"
        remotes.append(remote(server, f"/{name}.gz", checksum, f"mnist/{name}.gz", 0.01))
    mirrored = replace(MNIST_FILES, remotes=tuple(remotes))
    assert mirrored.files() == [cache / "mnist" / f"{name}.gz" for name in IDX_FILES]
    pool = mirrored.pool("unit")
    assert np.array_equal(np.rint(pool["x"][:, 0] * 255), [*images, *images])
    assert pool["y"].tolist() == [3, 1, 4, 3, 1, 4] and len(server.asked) == 4
    (cache / "mnist" / f"{IDX_FILES[2]}.gz").unlink()
    assert len(mirrored.files()) == 4 and len(server.asked) == 5  # only what is missing


def test_every_data_set_names_its_checksums():
    for wanted in (*MNIST_FILES.remotes, *FMNIST_FILES.remotes, EMNIST):
        kind, _, checksum = wanted.checksum.partition(":")
        assert kind == "sha256" and len(bytes.fromhex(checksum)) == 32
        assert wanted.url.endswith(wanted.file.split("/")[-1]) and wanted.megabytes > 0


def test_a_wrong_checksum_is_said_and_nothing_is_left(server, cache):
    server.content = CONTENT[:-1] + b"!"
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(DataError) as caught:
        fetch("mine", [remote(server, "/a")], "a file")
    assert f"wrong sha256 checksum {found}, expected {SHA256[7:]}" in str(caught.value)
    assert str(cache / "letters/file.bin") in str(caught.value) and "\n" not in str(caught.value)
    assert files(cache) == []


@pytest.mark.parametrize("path, said", [("/missing", "answers 404"), ("/short", "fails (ChunkedEncodingError)")])
def test_a_failed_download_says_which_file_to_put_where(server, cache, path, said):
    with pytest.raises(DataError) as caught:
        fetch("mine", [remote(server, path)], "file.bin", " (really)")
    message = str(caught.value)
    url = remote(server, path).url
    assert message.startswith(f"data mine is not in {cache} (really), and {url} {said}")
    assert f"; put file.bin into {cache}" in message
    assert message.endswith(f"; or download {url} as file.bin into {cache / 'letters'}")
    assert "\n" not in message and files(cache) == []


def test_without_a_network_the_error_is_the_same(cache):
    gone = Remote("a/b.gz", "http://127.0.0.1:9/b.gz", SHA256, 1.0)  # nobody listens at port 9
    with pytest.raises(DataError, match=r"b\.gz fails \(ConnectionError\); put it .*; or download http"):
        fetch("mine", [gone], "it")


def test_offline_nothing_is_asked_for(server, cache, monkeypatch):
    monkeypatch.setenv("PERSONAFL_OFFLINE", "1")
    with pytest.raises(DataError, match=r"PERSONAFL_OFFLINE forbids to download it; put .*; or download http"):
        fetch("mine", [remote(server, "/a")], "file.bin")
    assert server.asked == [] and not cache.exists()
    (cache / "letters").mkdir(parents=True)
    (cache / "letters/file.bin").write_bytes(b"put there by hand")
    assert fetch("mine", [remote(server, "/a")], "file.bin") == [cache / "letters/file.bin"]


def test_an_endless_file_is_cut_off(server, cache):
    with pytest.raises(DataError, match=r"sends more than 2 times the expected 0\.512 MB"):
        fetch("mine", [remote(server, "/endless")], "a file")
    assert files(cache) == [] and server.sent < 40_000_000  # what was under way


def test_a_cache_that_cannot_be_written_is_named(server, cache, monkeypatch):
    cache.write_bytes(b"a file, where a folder should be")
    with pytest.raises(DataError, match=rf"cannot write {cache}/letters/file\.bin: .*PERSONAFL_CACHE$"):
        fetch("mine", [remote(server, "/a")], "a file")


def test_a_full_disk_is_one_line_and_leaves_nothing(server, cache):
    """A limit on the size of files makes the write itself fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DataError) as caught:
            fetch("mine", [remote(server, "/a")], "a file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value).startswith(f"data mine: cannot write {cache}/letters/file.bin: ")
    assert "PERSONAFL_CACHE" in str(caught.value) and "\n" not in str(caught.value)
    assert files(cache) == []


# The packages' own __init__ would import torch, which takes longer than all the rest.
FETCH = """
import sys, types
for name, path in zip(("personafl", "personafl.data"), sys.argv[3:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from personafl.data.fetch import Remote, fetch
(path,) = fetch("mine", [Remote("file.bin", sys.argv[1], sys.argv[2], 0.512)], "a file")
sys.stdout.buffer.write(path.read_bytes())
"""


def run(script, wanted):
    packages = [path for package in (personafl, personafl.data) for path in package.__path__]
    command = [sys.executable, "-c", script, wanted.url, wanted.checksum, *packages]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))


@pytest.mark.slow
def test_two_processes_at_once_both_get_the_file(server, cache):
    processes = [run(FETCH, remote(server, "/slow")) for _ in range(2)]
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0 and out == CONTENT and err == b""  # no progress bar but on a terminal
    assert len(server.asked) == 2
    assert files(cache) == [cache / "file.bin"]


def test_a_killed_download_is_not_taken_for_the_file(server, cache):
    process = run(FETCH, remote(server, "/held"))
    until(lambda: any(path.stat().st_size for path in files(cache)), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (rest,) = files(cache)
    assert rest != cache / "file.bin" and 0 < rest.stat().st_size < len(CONTENT)
    wanted = [remote(server, "/a", file="file.bin")]
    assert fetch("mine", wanted, "a file")[0].read_bytes() == CONTENT
    assert rest in files(cache)  # it could be another process's
    (cache / "file.bin").unlink()
    os.utime(rest, (time.time() - 2 * 24 * 3600,) * 2)
    fetch("mine", wanted, "a file")
    assert files(cache) == [cache / "file.bin"]
