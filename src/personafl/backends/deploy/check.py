"""Is a site ready to join? Looked at without sending anything."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from personafl.backends.deploy.expiry import certificate_finding, key_finding
from personafl.backends.deploy.findings import Finding, Grade
from personafl.backends.deploy.keys import is_private, key_problem, open_to_others
from personafl.backends.deploy.layout import split_address
from personafl.backends.flower.ledger import Entry, Ledger, spent
from personafl.backends.flower.policy import read_policy
from personafl.backends.flower.policy_words import in_words
from personafl.backends.flower.record_words import RECORD
from personafl.backends.flower.signing import read_private, read_publics
from personafl.backends.flower.site_data import SiteSettings, read_data, read_site
from personafl.config import read_tables
from personafl.errors import ConfigError, PersonaflError
from personafl.federation import Federation
from personafl.federation.overview import label_counts
from personafl.files import checksum
from personafl.inputs import Shape, read_shape, shape_of, shape_text, tensors
from personafl.storage.chained_log import ChainedLog
from personafl.version import __version__

FLOWER = "1.41"  # what personafl is tried with
LEAST_DISK, FAIR_DISK = 100e6, 1e9


def check_site(path: Path, connect: bool = False) -> list[Finding]:
    """Look at everything that a site needs to join.

    Parameters
    ----------
    path : Path
        The site's site.toml, or its folder. Its keys, certificate and connection.env are beside it.
    connect
        Also make a TLS connection to the federation's address, and close it: nothing is sent.

    Returns
    -------
    list of Finding
        What is `bad` keeps the site from joining, a `warning` does not.
    """
    path = path / "site.toml" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: name the site.toml of a folder that the operator handed out")
    folder = path.resolve().parent
    try:
        settings = read_site(path)
        first = [Finding("site", "good", f"{settings.id}, folder {settings.folder}")]
        looks: list[Iterator[Finding]] = [_data(settings, folder), _limits(settings), _disk(Path(settings.folder))]
        looks += [_policy(settings), _record(settings), _files(settings, folder), _orders(settings)]
    except ConfigError as error:
        first, looks = [Finding("site", "bad", str(error))], []
    looks += [_key(folder), _certificates(folder), _programs(), _clock()]
    looks += [_connection(folder)] if connect else []
    return [*first, *(finding for look in looks for finding in look)]


def _programs() -> Iterator[Finding]:
    yield Finding("python", "good", platform.python_version())
    yield Finding("personafl", "good", __version__)
    for name in ("torch", "flwr"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "bad", "is not installed: pip install 'personafl[flower]'")
            continue
        other = name == "flwr" and not version.startswith(f"{FLOWER}.")
        yield Finding(name, "bad" if other else "good", f"{version}, expected {FLOWER}" if other else version)
    # Unit files start programs by name, so it matters that they are found, not only that they are installed.
    found = shutil.which("flower-supernode")
    yield Finding("flower-supernode", *(("good", found) if found else ("warning", "is not in PATH: activate the venv")))


def _data(settings: SiteSettings, folder: Path) -> Iterator[Finding]:
    try:
        fed = read_data(settings)
    except PersonaflError as error:
        yield Finding("data", "bad", str(error))
        return
    sizes = {split: int(fed.sizes(split)[0]) for split in ("train", "val", "test")}
    shape = shape_of(fed.x)
    types = ", ".join(sorted({str(value.dtype) for value in tensors(fed.x)}))
    yield Finding("data", "good", f"{sum(sizes.values())} samples of shape {shape_text(shape)}, {types}")
    shown = f"{sizes['train']} for training, {sizes['val']} for validation, {sizes['test']} for testing"
    if sizes["train"] < settings.least_samples:
        few = f"; with fewer than least_samples = {settings.least_samples} for training no answer leaves this site"
        yield Finding("splits", "bad", shown + few)
    else:
        yield Finding("splits", "good" if sizes["test"] else "warning", shown)
    if fed.classes is None:
        yield Finding("labels", "good", f"numbers from {float(fed.y.min()):g} to {float(fed.y.max()):g}")
    else:
        counts = label_counts(fed).sum(axis=0)
        per_class = ", ".join(f"{k}: {n}" for k, n in enumerate(counts) if n)
        alone = np.count_nonzero(counts) == 1
        yield Finding("labels", "warning" if alone else "good", f"samples of each class: {per_class}")
    yield from _fit(folder / "federation.toml", shape, fed)


def _fit(path: Path, shape: Shape, fed: Federation) -> Iterator[Finding]:
    """Whether the data is what the federation expects, where the operator said."""
    if not path.is_file():
        return
    try:
        expected = read_tables(path).get("federation", {})
    except ConfigError as error:
        yield Finding("fits federation.toml", "bad", str(error))
        return
    wrong = []
    if "input_shape" in expected and (wanted := read_shape(expected["input_shape"])) != shape:
        wrong.append(f"samples have shape {shape_text(shape)}, expected {shape_text(wanted)}")
    if "classes" in expected and (fed.classes is None or fed.classes > expected["classes"]):
        labels = "are not classes" if fed.classes is None else f"go up to class {fed.classes - 1}"
        wrong.append(f"labels {labels}, expected {expected['classes']} classes that count from 0")
    if "classes" not in expected and fed.classes is not None:
        wrong.append("labels are whole numbers, expected targets of a regression")
    yield Finding("fits federation.toml", "bad" if wrong else "good", "; ".join(wrong) or "shape and classes")


def _limits(site: SiteSettings) -> Iterator[Finding]:
    """What the site insists on, and what it has given away so far."""
    yield Finding(
        "limits", "good",
        f"an answer: batches of at least {site.least_batch_size} samples, {site.least_steps} steps, "
        f"{site.least_samples} different samples; a message: at most {site.most_steps:,} steps, "
        f"{site.most_parameters:,} parameters",
    )  # fmt: skip
    if site.least_together > 1:
        yield Finding("together", "good", f"answers only in a sum over at least {site.least_together} sites")
    asked = [f"noise of at least {site.least_noise:g}"] if site.least_noise else []
    asked += [f"ε of at most {site.most_epsilon:g} at δ = {site.delta:g}"] if site.most_epsilon is not None else []
    asked += ["metrics are reported, which ε does not cover" if site.reports_metrics else "no metrics are reported"]
    yield Finding("privacy", "warning" if len(asked) > 1 and site.reports_metrics else "good", "; ".join(asked))
    try:
        yield _ledger(site, Ledger(Path(site.folder), site.id).entries())
    except PersonaflError as error:
        yield Finding("ledger", "bad", str(error))


def _ledger(site: SiteSettings, entries: Sequence[Entry]) -> Finding:
    counts = Counter(entry.what for entry in entries)
    runs = len({entry.run for entry in entries})
    about = f"{counts['update']} updates and {counts['metrics']} times metrics were reported, in {runs} runs"
    if not counts["update"]:
        return Finding("ledger", "good", about)
    used, updates = spent(entries, site.delta), [entry for entry in entries if entry.what == "update"]
    about += f"; ε = {used:.4g} at δ = {site.delta:g}" if np.isfinite(used) else "; ε is infinite: not all had noise"
    if site.most_epsilon is None:
        return Finding("ledger", "good", about)
    # Where an answer with the noise of the last one would be too much, the site will refuse it.
    state: Grade = "good" if spent([*updates, updates[-1]], site.delta) <= site.most_epsilon else "bad"
    rest = "" if state == "good" else ", so that nothing is left of most_epsilon for another one"
    return Finding("ledger", state, f"{about}, of most_epsilon = {site.most_epsilon:g}{rest}")


def _key(folder: Path) -> Iterator[Finding]:
    key = folder / "node.key"
    if not key.is_file():
        yield Finding("key", "bad", f"there is no {key.name}, by which the operator knows this site")
    elif problem := key_problem(key, folder / "node.pub"):
        yield Finding("key", "bad", f"{key.name} {problem}")
    elif not is_private(key):
        yield Finding("key", "bad", f"others can read {key.name}: chmod 600 {key.name}")
    else:
        yield Finding("key", "good", f"{key.name} belongs to node.pub, and only its owner can read it")
        yield key_finding(key, "personafl site request --new-key")


def _orders(settings: SiteSettings) -> Iterator[Finding]:
    if settings.orders is None or settings.key is None:
        about = "site.toml names no orders and key: this site obeys whoever reaches it, and signs nothing"
        yield Finding("orders", "warning", about)
        return
    try:
        read_publics(Path(settings.orders)), read_private(Path(settings.key))
        yield Finding("orders", "good", f"only those that are signed with {Path(settings.orders).name} are followed")
    except ConfigError as error:
        yield Finding("orders", "bad", str(error))


def _files(settings: SiteSettings, folder: Path) -> Iterator[Finding]:
    places = (folder, Path(settings.folder), Path(settings.data))
    found = sorted({path for place in places for path in open_to_others(place)})
    if found:
        named = ", ".join(path.name for path in found[:5]) + (", …" if len(found) > 5 else "")
        about = f"others on this machine can read {named}: chmod -R go= {folder}, and the data if it is elsewhere"
        yield Finding("files", "warning", about)
    else:
        yield Finding("files", "good", "nobody else on this machine can read them")


def _certificates(folder: Path) -> Iterator[Finding]:
    yield certificate_finding(folder / "ca.crt")
    if (folder / "node.crt").exists():
        yield certificate_finding(folder / "node.crt", "own certificate")
    else:
        about = "there is no node.crt, without which the federation's proxy refuses this site: personafl site request"
        yield Finding("own certificate", "bad", about)


def _policy(settings: SiteSettings) -> Iterator[Finding]:
    if settings.policy is None:
        yield Finding("policy", "warning", "there is no policy.toml: what site.toml does not limit is not limited")
        return
    path = Path(settings.policy)
    yield Finding("policy", "good", f"{path.name}, SHA-256 {checksum(path)}")
    for what, about in in_words(read_policy(path)).items():
        yield Finding(f"policy: {what}", "good", about)


def _record(settings: SiteSettings) -> Iterator[Finding]:
    try:
        lines = ChainedLog(Path(settings.folder) / RECORD).lines()
    except PersonaflError as error:
        yield Finding("record", "bad", str(error))
        return
    refused = sum(line.get("event") == "refused" for line in lines)
    yield Finding("record", "good", f"{len(lines)} lines, all as they were written; {refused} orders were refused")


def _disk(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("folder", "bad", f"cannot write to {folder}")
        return
    free = shutil.disk_usage(folder).free
    state: Grade = "bad" if free < LEAST_DISK else "warning" if free < FAIR_DISK else "good"
    yield Finding("folder", state, f"{free / 1e9:.1f} GB are free")


def _clock() -> Iterator[Finding]:
    """A site signs the time, and is refused when its clock is off: 5 seconds ahead or 5 minutes behind."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    try:
        asked = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said == "yes":
        yield Finding("clock", "good", f"{now}, synchronized")
    else:
        how = "not synchronized" if said == "no" else "whether it is synchronized is not known here"
        yield Finding("clock", "warning", f"{now}, {how}: more than 5 seconds ahead, and the site is refused")


def _connection(folder: Path) -> Iterator[Finding]:
    try:
        address = _address(folder / "connection.env")
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        host, port = split_address(address)
        with (
            socket.create_connection((host, port), 10) as plain,
            context.wrap_socket(plain, server_hostname=host) as up,
        ):
            yield Finding("connection", "good", f"{address} answers with the federation's certificate, {up.version()}")
    except ssl.SSLError as error:
        yield Finding("connection", "bad", f"{address} is not trusted: {error.reason or error}")
    except OSError as error:
        yield Finding("connection", "bad", f"cannot reach the federation: {error}")
    except ConfigError as error:
        yield Finding("connection", "bad", str(error))


def _address(path: Path) -> str:
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("SUPERLINK="):
            return line.removeprefix("SUPERLINK=").strip().strip("\"'")
    raise ConfigError(f"{path.name} has no line SUPERLINK=HOST:PORT")
