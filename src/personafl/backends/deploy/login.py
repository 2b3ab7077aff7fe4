"""The operator's login. `start-superlink.sh` and `flwr.sh` run this file by itself, without the package.

A SuperLink answers sites, its operator and its own programs on one port, which every user of the operator's machine
reaches, and Flower 1.41 has logins for operators in its enterprise edition only. So a secret is made at each start, in
a file that the SuperLink's own user alone can read, and the SuperLink answers whoever shows it. Two kinds of paths are
left out, where Flower asks for a proof itself: sites sign with their keys, and a run's program has a token.

    python3 login.py prepare FOLDER           fresh secrets, before the SuperLink starts
    python3 login.py serve FOLDER ARGUMENTS   the SuperLink itself
    python3 login.py flwr FOLDER ARGUMENTS    Flower's own program, which shows the secret
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "personafl-login"
PROVEN = ("/v1/fleet/", "/v1/runtime/")
"""Paths for which Flower asks for a signature or a token itself."""
OPERATORS = ("/v1/fleet/register-node", "/v1/fleet/unregister-node")
"""Among them: what only the operator does."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Login:
    """Refuses, before anything of it is read, what neither shows the secret nor has to prove itself to Flower.

    Parameters
    ----------
    app
        What answers the others, by ASGI.
    secret
        What has to be shown.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], secret: str) -> None:
        self.app, self.secret = app, secret.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._may(scope)):
            return await self.app(scope, receive, send)
        if scope["type"] == "http":
            text = b"the operator's login is missing: use flwr.sh of the operator's folder, as its user"
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": text})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _may(self, scope: Message) -> bool:
        shown = [value for name, value in scope["headers"] if name == HEADER.encode()]
        proven = scope["path"].startswith(PROVEN) and scope["path"] not in OPERATORS
        return proven or any(secrets.compare_digest(value, self.secret) for value in shown)


class Shown:
    """Shows the secret with every request of one of Flower's clients."""

    def __init__(self, folder: Path) -> None:
        self.headers = {HEADER: (folder / "login").read_text("ascii")}

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Pass a request on, with the secret."""
        context.request.headers.update(self.headers)
        return call_next(context)


def prepare(folder: Path) -> None:
    """Write the secrets of the SuperLink's port: the operator's, and that of the program that does runs."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = {"login": secrets.token_hex(32).encode(), "secret": secrets.token_bytes(32)}
    for file, content in {**made, "crt": (folder.parent / "ca.crt").read_bytes()}.items():
        (folder / file).unlink(missing_ok=True)
        with open(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
            to.write(content)


def serve(folder: Path, arguments: list[str]) -> None:
    """Run a SuperLink that asks for the login."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    secret = (folder / "login").read_text("ascii")
    extensions.get_middleware = lambda: (Middleware(Login, secret=secret),)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def flwr(folder: Path, arguments: list[str]) -> None:
    """Run Flower's own program as the operator."""
    from flwr.cli.app import app
    from flwr.supercore.control import ControlHttpClient

    make = ControlHttpClient.__init__

    def with_login(self: ControlHttpClient, *given: object, **settings: Any) -> None:
        settings["interceptors"] = [*settings.get("interceptors", ()), Shown(folder)]
        make(self, *given, **settings)

    ControlHttpClient.__init__ = with_login
    sys.argv = ["flwr", *arguments]
    app()


def main() -> None:
    """What the operator's scripts call."""
    what, place, *arguments = sys.argv[1:]
    folder = Path(place).resolve()
    if what == "prepare":
        return prepare(folder)
    if what == "flwr" and not (folder / "login").exists():
        sys.exit("error: the SuperLink has not been started: start-superlink.sh")
    return (serve if what == "serve" else flwr)(folder, arguments)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
