"""Telling the SuperLink that a key counts no more. unregister-site.sh calls this."""

from __future__ import annotations

import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from personafl.backends.deploy.login import Shown
from personafl.backends.flower.signing import read_public
from personafl.errors import PersonaflError


def unregister(operator: Path, private: str, key: ec.EllipticCurvePublicKey) -> int:
    """Unregister the nodes of a key at the SuperLink that listens on `private`; how many there were.

    `flwr supernode list` shows neither keys nor names, so that its list is asked for here.
    """
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), Shown(operator / "runtime")]
    client = ControlHttpClient.from_server_address(private, False, (operator / "ca.crt").read_bytes(), interceptors)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        nodes = [node for node in client.ListNodes(ListNodesRequest()).nodes_info if node.public_key == pem]
        for node in nodes:
            client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        return len(nodes)
    finally:
        client.close()


def main() -> None:
    """For unregister-site.sh: the operator's folder, where the SuperLink listens, and files of public keys."""
    operator, private, *keys = sys.argv[1:]
    try:
        for key in keys:
            count = unregister(Path(operator), private, read_public(Path(operator) / key))
            print(f"{Path(key).name}: {count} nodes unregistered")
    except PersonaflError as error:
        sys.exit(f"error: {error}")
    except FileNotFoundError:  # the login, which is made at every start
        sys.exit(f"error: the SuperLink at {private} was not told: it has never been started here")
    except Exception as error:  # whatever Flower or its connection has
        sys.exit(
            f"error: the SuperLink at {private} was not told ({type(error).__name__}: {str(error)[:200]}); nginx and "
            f"runs refuse the key all the same. When it runs: operator/unregister-site.sh {' '.join(keys)}"
        )
