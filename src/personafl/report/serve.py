"""The page of runs that go on: a server on this machine that knows two things, the page and its data."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from personafl.errors import RunError
from personafl.report.data import TROUBLE, report_data
from personafl.report.page import page

log = logging.getLogger("personafl")


class Watched:
    """Runs, read again when their files changed and somebody asks."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._lock = threading.Lock()
        self._version = self._stamp()
        self._data = report_data(self.paths)

    def now(self) -> tuple[str, dict[str, Any]]:
        """The version and the data. Where the files cannot be read at the moment, the last ones that could."""
        with self._lock:
            version = self._stamp()
            if version != self._version:
                try:
                    self._data = report_data(self.paths)
                    self._version = version
                except TROUBLE as error:
                    log.warning("the report stays as it was: %s", error)
            return self._version, self._data

    def _stamp(self) -> str:
        """A digest of names, sizes and times of all files that a report reads."""
        found = []
        for file in sorted(self._files()):
            try:
                state = file.stat()
            except OSError:  # it was there a moment ago
                continue
            found.append((str(file), state.st_size, state.st_mtime_ns))
        return sha256(repr(found).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def _files(self) -> Iterator[Path]:
        for path in self.paths:
            runs = [path] if (path / "run.toml").is_file() else sorted(p.parent for p in path.glob("*/run.toml"))
            yield path / "comparison.json"
            for run in runs:
                yield from (
                    run / name for name in ("run.toml", "rounds.jsonl", "clients.parquet", "predictions.parquet")
                )
                yield run / "models" / "personal.safetensors"
                yield from run.glob("clients.parts/round-*.parquet")


def make_server(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server for the report of these runs, not started yet.

    Parameters
    ----------
    paths
        Run folders, or the folder of a comparison.
    host
        The address to listen at; others than this machine's own let anybody on the network read the report.
    port
        0 takes a free one; `server_port` says which.
    """
    watched = Watched(paths)
    local = _is_loopback(host)

    class Handler(BaseHTTPRequestHandler):
        server_version = "personafl"
        sys_version = ""

        def do_GET(self) -> None:
            # A page elsewhere could name a host that resolves to this machine, and read the report through it.
            if local and not _is_loopback(_hostname(self.headers.get("Host"))):
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            make = {"/": _as_page, "/version": _as_version, "/data": _as_data}.get(self.path.partition("?")[0])
            if make is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind, text = make(*watched.now())
            body = text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *values: Any) -> None:
            """A poll every two seconds is not worth a line."""

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the browser has left
                self.close_connection = True

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise RunError(f"cannot serve at {host}:{port}: {error}; choose another --port or --host") from None
    server.daemon_threads = True
    return server


def _as_page(version: str, data: dict[str, Any]) -> tuple[str, str]:
    return "text/html", page(data, live=True)


def _as_version(version: str, data: dict[str, Any]) -> tuple[str, str]:
    return "text/plain", version


def _as_data(version: str, data: dict[str, Any]) -> tuple[str, str]:
    return "application/json", json.dumps(data, allow_nan=False)


def _hostname(header: str | None) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
