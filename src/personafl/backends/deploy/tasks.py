"""The tasks of a SuperNode or SuperLink, for its own user only. Scripts run this file by itself, without the package.

A SuperNode keeps the operator's messages for whoever asks on its port, and every user of the machine reaches that port.
Flower's own program that asks (flower-superexec) proves by a secret that it may, but then writes each task's token on
a command line, which every user can read too. This does the same and hands the token over by a pipe. It also knows the
SuperNode by a certificate, so that nobody who takes the port first can give it tasks. The operator's SuperLink has its
runs done in the same way, see login.py.

At a site, what runs is the installed personafl, whatever app the operator started: nothing of the app that comes with
a run is unpacked or imported. And the SuperNode has a client certificate, which Flower 1.41 has no option for.

    python3 tasks.py prepare FOLDER           a fresh secret and certificate, before the SuperNode starts
    python3 tasks.py join FOLDER ARGUMENTS    the SuperNode itself, which shows nginx the site's certificate
    python3 tasks.py work FOLDER PORT PID     have a process do each task, until the SuperNode, PID, ends
    python3 tasks.py do FOLDER PORT PID       such a process, started by PID
    python3 tasks.py work-runs …, do-run …    the same for the runs of a SuperLink
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

HOST = "127.0.0.1"
PAUSE = 1.0
"""Seconds between two questions whether there is a task."""
DAYS = 3650  # of a certificate that is made anew at every start


def prepare(folder: Path) -> None:
    """Write the secret and the certificate of the SuperNode's own port."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP384R1()), x509.Name([])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=True)
        .sign(key, hashes.SHA384())
    )
    folder.mkdir(mode=0o700, exist_ok=True)
    pem = serialization.Encoding.PEM

    def plain(key: ec.EllipticCurvePrivateKey) -> bytes:
        written: bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return written

    node = serialization.load_ssh_private_key((folder.parent / "node.key").read_bytes(), None)
    assert isinstance(node, ec.EllipticCurvePrivateKey)
    for file, content in {
        "secret": secrets.token_bytes(32),
        "key": plain(key),
        "crt": certificate.public_bytes(pem),
        "node.pem": plain(node),  # as TLS takes it
    }.items():
        (folder / file).unlink(missing_ok=True)
        with open(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
            to.write(content)


def join(folder: Path, arguments: list[str]) -> None:
    """Run a SuperNode that proves who it is when it connects, by the certificate that the operator gave the site."""
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supernode.cli import flower_supernode

    make = ProtobufClient.__init__

    def with_certificate(self: ProtobufClient, base_url: str, **settings: object) -> None:
        verify = settings.get("verify")
        if isinstance(verify, ssl.SSLContext):
            verify.load_cert_chain(folder.parent / "node.crt", folder / "node.pem")
        make(self, base_url, **settings)

    ProtobufClient.__init__ = with_certificate
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def work(folder: Path, address: str, server: int, does: str) -> None:
    """Ask the SuperNode or SuperLink for tasks, and start a process for each that `does` it."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    start_parent_process_monitor(server)
    proof = SuperExecAuthHttpInterceptor(
        master_secret=(folder / "secret").read_bytes(), protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=(folder / "crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), proof],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP if does == "do-run" else TaskType.CLIENT_APP])
    while not _listens(address):
        time.sleep(PAUSE / 5)
    spare = _start(folder, address, does)
    while True:
        spare = _start(folder, address, does) if spare.poll() is not None else spare
        found = client.AcquireTask(asked)
        if found.HasField("task") and found.token:
            _give(spare, found.token)
            spare = _start(folder, address, does)
        time.sleep(PAUSE)


def do(folder: Path, address: str, parent: int) -> None:
    """Do the one task of a site whose token comes by the pipe."""
    from flwr.supernode.runtime import run_clientapp as flower

    # What the operator's app holds is not looked at: an order says by names what is done, and the site's policy which.
    flower.install_from_fab = lambda *app, **settings: None
    flower.get_load_client_app_fn = lambda **settings: _installed_app
    if token := sys.stdin.readline().strip():
        flower.run_clientapp(address, token, False, (folder / "crt").read_bytes(), parent)


def do_run(folder: Path, address: str, parent: int) -> None:
    """Do the one run of the operator whose token comes by the pipe."""
    from queue import Queue

    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

    if token := sys.stdin.readline().strip():
        said: Queue[str | None] = Queue()
        mirror_output_to_queue(said)
        run_serverapp(address, said, token, False, (folder / "crt").read_bytes(), parent, False)


def _installed_app(*app: str) -> object:
    """The ClientApp of the personafl that is installed here."""
    from personafl.backends.flower import app as installed

    return installed.client_app


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 10):
        return True
    return False


def _start(folder: Path, address: str, does: str) -> subprocess.Popen[str]:
    """A process that is ready for a task: Flower gives a task up that is not begun within half a minute."""
    command = [sys.executable, "-P", __file__, does, str(folder), address, str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _give(process: subprocess.Popen[str], token: str) -> None:
    assert process.stdin is not None
    with process.stdin as to:
        to.write(f"{token}\n")
    threading.Thread(target=process.wait, daemon=True).start()  # whatever comes of it: the SuperNode knows


def main() -> None:
    """What the start scripts of a deployment call, with the task, the folder and the ports."""
    what, folder, *more = sys.argv[1:]
    if what == "prepare":
        return prepare(Path(folder).resolve())
    if what == "join":
        return join(Path(folder).resolve(), more)
    # By this Flower ends what outlives its server; a shell has background programs ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    address, other = more[0] if ":" in more[0] else f"{HOST}:{more[0]}", int(more[1])
    if what in ("do", "do-run"):
        return (do if what == "do" else do_run)(Path(folder), address, other)
    try:
        work(Path(folder), address, other, "do-run" if what == "work-runs" else "do")
    finally:  # a server whose tasks nobody does is ended, and started anew by its unit
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGTERM)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
