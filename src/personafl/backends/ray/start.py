"""Ray, started on this machine or joined: what the engine `ray` and comparisons that are spread over Ray begin with."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from personafl.engines.machine import cores
from personafl.errors import ConfigError
from personafl.settings import require_ray

log = logging.getLogger("personafl")

LOOPBACK = ("127.0.0.1", "::1")
PATIENCE = 10.0
"""Seconds until a cluster must answer."""


@contextmanager
def connect(address: str | None = None) -> Iterator[bool]:
    """A connection to Ray. Gives whether it is a Ray of our own, that ends with the connection.

    Parameters
    ----------
    address
        A cluster's, such as `10.0.0.1:6379`, or `auto` for the one that this machine belongs to. Left out: the Ray that
        this process has started or joined already, or else the cluster that the environment names (RAY_ADDRESS, as in
        jobs that were submitted to a cluster), or else a Ray of our own with the cores that this process may use.

    A cluster goes on running after us, and so does a Ray that this process had before. Ray asks nobody for a password,
    so our own listens on the loopback address alone.
    """
    require_ray()
    address = address or os.environ.get("RAY_ADDRESS") or None
    ours = address in (None, "local")
    with _only_here(ours):
        import ray

        if ray.is_initialized():
            here = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", here):
                raise ConfigError(f"ray.address = {address!r}: this process has joined the Ray at {here} already")
            yield False
            return
        try:
            _start(ray, ours, address)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"ray.address = {address!r}: no Ray answers there ({reason})") from None
    if ours and ray.util.get_node_ip_address() not in LOOPBACK:
        log.warning(
            "Ray listens on %s and asks nobody for a password: see that no stranger reaches this machine",
            ray.util.get_node_ip_address(),
        )
    try:
        yield ours
    finally:
        ray.shutdown()


def _start(ray: Any, ours: bool, address: str | None) -> None:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if ours:
        settings |= {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    else:
        _knock(str(address))
        settings |= {"address": address}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what Ray is going to change does not concern us
        ray.init(**settings)


def _knock(address: str) -> None:
    """Ray itself tries for many minutes where nobody is."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()


@contextmanager
def _only_here(ours: bool) -> Iterator[None]:
    """While a Ray of our own starts: it stays on this machine, and reports its use to nobody."""
    if not ours:
        yield
        return
    # Ray's switch for "no cluster", which it reads when it is imported; its processes read it from the environment.
    wanted = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    from ray._private import ray_constants

    clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
