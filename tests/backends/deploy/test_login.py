"""What a SuperLink answers without the operator's login, and what not."""

import asyncio

import pytest

from personafl.backends.deploy.login import Login, Shown, prepare

SECRET = "5" * 64


def ask(path, headers=(), kind="http"):
    """The status of an answer, and whether anything of the request was read or passed on."""
    said, seen = [], []

    async def app(scope, receive, send):
        seen.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200})

    async def receive():
        seen.append("read")
        return {}

    async def send(message):
        said.append(message)

    asyncio.run(Login(app, SECRET)({"type": kind, "path": path, "headers": list(headers)}, receive, send))
    return said[0].get("status", said[0].get("code")), bool(seen)


def login(value):
    return [(b"personafl-login", value.encode())]


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/fleet/register-node", "/docs", "/v1/fleet", "/", ""])
def test_the_operators_paths_need_the_secret(path):
    assert ask(path, login(SECRET)) == (200, True)
    for headers in ((), login(""), login(SECRET[:-1]), login(SECRET + "5"), [(b"cookie", SECRET.encode())]):
        assert ask(path, headers) == (401, False)


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/runtime/push-logs"])
def test_where_flower_asks_for_a_proof_itself_it_is_asked(path):
    assert ask(path) == (200, True)


def test_nothing_is_answered_but_requests():
    assert ask("/v1/control/x", kind="websocket") == (1008, False)


def test_secrets_are_the_owners_alone_and_new_each_time(tmp_path):
    (tmp_path / "ca.crt").write_text("authority")
    seen = set()
    for _ in range(2):
        prepare(tmp_path / "runtime")
        seen |= {(tmp_path / "runtime" / name).read_bytes() for name in ("login", "secret")}
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "runtime").iterdir()} == {0o600}
    assert len(seen) == 4 and (tmp_path / "runtime").stat().st_mode & 0o777 == 0o700
    assert Shown(tmp_path / "runtime").headers["personafl-login"].encode() in seen
