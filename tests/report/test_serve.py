"""The server knows the page, its version and its data, and survives runs that are being written."""

import http.client
import json
import threading
from contextlib import contextmanager

import pyarrow as pa
import pytest

from personafl.errors import RunError
from personafl.report.serve import make_server
from tests.report.folders import written


@contextmanager
def serving(*paths, **where):
    with make_server(paths, **where) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def get(port, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_the_page_and_nothing_else(tmp_path):
    run = written(tmp_path / "run")
    with serving(run.path) as port:
        status, text = get(port, "/")
        assert status == 200 and "data-live" in text and "connect-src 'self'" in text
        assert get(port, "/version")[0] == 200
        for path in ("/run.toml", "/../run.toml", "/clients.parquet", "//etc/passwd", "/index.html", "/data/"):
            assert get(port, path)[0] == 404


def test_other_names_for_this_machine_are_turned_away(tmp_path):
    with serving(written(tmp_path / "run").path) as port:
        assert get(port, "/", f"evil.example:{port}")[0] == 403
        assert get(port, "/", f"localhost:{port}")[0] == 200
        assert get(port, "/", f"[::1]:{port}")[0] == 200
        assert get(port, "/", "[")[0] == 403


def test_new_rounds_change_the_version_and_the_data(tmp_path):
    run = written(tmp_path / "run", correct=[(5, 9, 3, 0)], finished=False, rounds=3)
    with serving(run.path) as port:
        before = get(port, "/version")[1]
        assert get(port, "/version")[1] == before
        table = run.folder.clients()
        later = table.set_column(table.column_names.index("round"), "round", pa.array([2] * len(table), pa.int32()))
        run.folder.evaluations.write(2, later)
        run.folder.append(
            "rounds.jsonl", {"round": 2, "active": 4, "bytes_up": 1, "bytes_down": 1, "personal_accuracy": 0.75}
        )
        assert get(port, "/version")[1] != before
        data = json.loads(get(port, "/data")[1])
        assert data["runs"][0]["round"] == 2
        assert data["curves"][0]["rounds"] == [1, 2]


def test_files_that_cannot_be_read_leave_the_last_page(tmp_path):
    run = written(tmp_path / "run")
    with serving(run.path) as port:
        before = get(port, "/data")[1]
        (run.path / "clients.parquet").write_bytes(b"half of it")
        assert get(port, "/data") == (200, before)


def test_a_port_in_use_is_one_line(tmp_path):
    run = written(tmp_path / "run")
    with serving(run.path) as port, pytest.raises(RunError, match="choose another --port"):
        make_server([run.path], port=port)
