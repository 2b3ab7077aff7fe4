"""The two Flower apps of a federation: `server_app` for the operator, `client_app` for every site.

The ServerApp's run config says `config`, the operator's TOML file, and `out`, the run folder, where a run that was
interrupted goes on; and `keys`, the folder of the operator's keys, where messages are signed. A SuperNode's node config
says `site`, the TOML file of the site.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import trained_task
from personafl.backends.flower.job import fingerprint, model_outputs, usual_task
from personafl.backends.flower.leaving import released
from personafl.backends.flower.members import FederationSettings, gather
from personafl.backends.flower.messages import pack, unpack, values
from personafl.backends.flower.orders import read_layout, read_order
from personafl.backends.flower.records import Record
from personafl.backends.flower.secure.answers import ANSWERS
from personafl.backends.flower.secure.clients import SecureClients
from personafl.backends.flower.secure.settings import Secure, check_secure
from personafl.backends.flower.server import FlowerClients
from personafl.backends.flower.signed_files import sign_models
from personafl.backends.flower.signing import OperatorSeal, SiteSeal
from personafl.backends.flower.site import Site
from personafl.backends.flower.site_data import read_site
from personafl.backends.flower.vectors import WordVectorFile
from personafl.config import Config, parse, read_tables
from personafl.errors import ConfigError, DataError, PersonaflError, PluginError
from personafl.federation.folders import digest
from personafl.files import checksum
from personafl.inputs import written_shape
from personafl.kernels.modes import frozen_and_eval, frozen_hashes, whole_hash
from personafl.kernels.task import Task
from personafl.metrics.measures import LOSS, measures_in
from personafl.models import MCLR, MODELS, LoRA, default_model, initialize
from personafl.models.weights import load_weights
from personafl.pretrained.loading import BackboneSettings
from personafl.registry import checked, class_path
from personafl.storage.folder import RunFolder
from personafl.tasks import TASKS
from personafl.training.events import Listener
from personafl.training.rounds import Origin, run_rounds

log = logging.getLogger("personafl")

# --- the server ----------------------------------------------------------------------------------------------


def serve(grid: Grid, config: Path, out: Path, keys: Path | None = None) -> None:
    """Train what an operator's config describes with the sites of a grid, into a run folder.

    A run that the folder holds already goes on from its last checkpoint. `keys` has the operator's key and those of the
    sites; without it nothing is signed, and sites that have the operator's key do not obey.
    """
    described, settings = read_operator(config)
    seal = None if keys is None else OperatorSeal(keys)
    folder = RunFolder(out)
    with folder.lock():
        before = folder.manifest()["resolved"].get("sites", []) if folder.exists else []
        record = Record(keys)
        nodes, client_index = gather(grid, settings, before, seal, record)
        model = described.model or (MCLR() if described.backbone else default_model(settings.input_shape))
        described = replace(described, model=model, local=described.local.for_rounds(described.schedule.rounds))
        kind, seed = described.task or usual_task(settings.classes), described.seed
        outputs = model_outputs(kind, settings.classes, settings.outputs)
        constants = settings.constants
        module = initialize(model, settings.input_shape, outputs, seed, constants)
        seeded = fingerprint(trained_task(described.algorithm, Task(module, kind)).theta0)
        if described.weights is not None:
            load_weights(module, Path(described.weights))
        task = trained_task(described.algorithm, Task(module, kind))
        table = {key: value for key, value in described.tables()["model"].items() if key != "weights"}
        if isinstance(model, LoRA):
            del table["path"]  # the operator's; sites have their own
        frozen = frozen_hashes(module)
        secure = settings.secure
        clients = (FlowerClients if secure is None else SecureClients)(
            nodes, client_index, settings, task, described.algorithm, described.local, seed, table, described.privacy,
            seeded, pinned(described.backbone),
        )  # fmt: skip
        resolved = {
            "engine": "flower",
            "threads": clients.threads,
            "engine_reason": "asked for",
            "clients": len(client_index),
            "sites": list(client_index.ids),
            "classes": settings.classes,
            "input_shape": written_shape(settings.input_shape),
            "input_dtype": next(nodes.site_info(client).dtype for client in nodes.where()),
            "outputs": outputs,
            # Nobody has seen the data: these are the same sites with samples of the same kind.
            "fingerprint": digest([], [client_index.ids, settings.input_shape, settings.classes, outputs]),
        }
        if frozen:
            resolved |= {"frozen_sha256": whole_hash(frozen), **frozen_and_eval(module)}
        if described.privacy is not None and described.privacy.noise:
            of_server = described.privacy.noise_at == "server"
            share = "" if secure is None else ", a share of the sum's"
            resolved["noise"] = f"from {'the operator' if of_server else 'each site'}'s own secure generator{share}"
        backbone = {} if described.backbone is None else {"backbone": pinned(described.backbone)}
        summed = {} if secure is None else {"secure": secure.table()}
        tables = {"data": {"name": "sites"}, **backbone, "model": described.tables()["model"], **summed}
        origin = Origin(tables, resolved, constants, frozen)
        names = {"algorithm": described.algorithm.name, "model": model.name, "sites": list(client_index.ids)}
        record.note("run", folder=str(out), config=checksum(config), **names)
        run_rounds(folder, clients, described.algorithm, described.schedule, origin, [RoundLog()], described.robust)
        if keys is not None:
            sign_models(folder.models, keys / "orders.key", "the operator")
        record.note("ended", folder=str(out))


def read_operator(path: Path) -> tuple[Config, FederationSettings]:
    """An operator's config: an ordinary one with a `[federation]` table, and without data, which is at the sites.

    Where it has a `[secure]` table, answers are added up by secure aggregation.
    """
    values = read_tables(path)
    for key in ("data", "partition", "splits", "splitting", "engine", "methods"):
        if key in values:
            raise ConfigError(f"{path}: {key} has no place in the config of a federation: sites bring their own data")
    if "federation" not in values:
        raise ConfigError(f"{path} has no [federation] table: it says who takes part and what a sample looks like")
    settings: FederationSettings = checked(FederationSettings, "federation", values.pop("federation"))
    if "vectors" in values:
        settings = replace(settings, vectors=_vectors(path, values.pop("vectors")))
    if "secure" in values:
        settings = replace(settings, secure=checked(Secure, "secure", values.pop("secure")))
    # A round in a federation takes long enough for a checkpoint, and so at most the round in flight is lost.
    described = parse({"checkpoint_every": 1, **values})
    for key, registry, value in (
        ("algorithm", ALGORITHMS, described.algorithm),
        ("model", MODELS, described.model),
        ("task", TASKS, described.task),
    ):
        if value is not None and not registry.knows(type(value)):
            raise ConfigError(
                f"{path}: {key} = {class_path(type(value))!r} has no name here, and sites take nothing but names: "
                "install a package with an entry point for it, here and at the sites (docs/your-package.md)"
            )
    if isinstance(described.model, LoRA):
        if described.model.sha256 is None:
            raise ConfigError(f"{path}: model.sha256 is missing: sites compare the weights on their disks with it")
        own = path.resolve().parent / Path(described.model.path).expanduser()  # as the paths of a site.toml
        described = replace(described, model=replace(described.model, path=str(own)))
    if described.backbone is not None and described.backbone.sha256 is None:
        raise ConfigError(f"{path}: backbone.sha256 is missing: sites compare the weights on their disks with it")
    if settings.secure is not None:
        sites = described.schedule.cohort_size(len(settings.clients) or settings.sites)
        check_secure(settings.secure, described.algorithm, sites, described.privacy, described.robust)
    return described, settings


def _vectors(path: Path, table: Any) -> WordVectorFile:
    """The word vectors of an operator's config."""
    found: WordVectorFile = checked(WordVectorFile, "vectors", table)
    if found.sha256 is None:
        raise ConfigError(f"{path}: vectors.sha256 is missing: sites compare the word vectors on their disks with it")
    return found.beside(path)


def pinned(backbone: BackboneSettings | None) -> dict[str, Any] | None:
    """What sites learn of the backbone: no weights, no code and no path."""
    if backbone is None:
        return None
    name = backbone.name or Path(str(backbone.path)).name
    pins = {key: getattr(backbone, key) for key in ("sha256", "pooling", "normalize")}
    return {"name": name, **pins}


class RoundLog(Listener):
    """A line in the log for each round."""

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._rounds, self._manifest = manifest["rounds"], manifest
        if round:
            log.info("going on after round %d", round)

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        away = len(record.get("dropped", ()))
        names = [f"personal_{measure.name}" for measure in (*measures_in(self._manifest, [record]), LOSS)]
        score = "".join(f", {name} {record[name]:.4f}" for name in names if name in record)
        log.info(
            "round %d of %d: %d of %d sites answered%s (%.1f s)",
            record["round"], self._rounds, record["active"] - away, record["active"], score, seconds["round"],
        )  # fmt: skip


def _serve(grid: Grid, context: Context) -> None:
    _speak()
    found = [context.run_config.get(key) for key in ("config", "out")]
    if not all(isinstance(value, str) and value for value in found):
        raise ConfigError("the run config needs config (the operator's TOML file) and out (the run folder)")
    try:
        keys = str(context.run_config.get("keys", ""))
        serve(grid, Path(str(found[0])), Path(str(found[1])), Path(keys) if keys else None)
    except PersonaflError as error:
        log.error("%s", error)
        raise


server_app = ServerApp()
server_app.main()(_serve)

# --- a site --------------------------------------------------------------------------------------------------


def make_client_app(find: Callable[[Context], Site]) -> ClientApp:
    """A ClientApp whose node is the site that `find` says."""

    def handler(kind: str, answer: Callable[[Site, RecordDict], RecordDict]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            def work() -> RecordDict:
                site, order = find(context), message.content
                return released(
                    site, kind, order, lambda: _sealed(site, kind, context.node_id, order, lambda: answer(site, order))
                )

            return Message(_answer(work), reply_to=message)

        return handle

    app = ClientApp()
    app.query()(handler("query", _introduce))
    app.train()(handler("train", _train))
    app.evaluate()(handler("evaluate", _evaluate))
    for kind, answer in ANSWERS.items():
        category, action = kind.split(".")
        getattr(app, category)(action)(handler(kind, answer))
    return app


def _sealed(site: Site, kind: str, node: int, order: RecordDict, work: Callable[[], RecordDict]) -> RecordDict:
    """An answer that the site has signed, to an order that the operator has; where there are no keys, any answer."""
    settings = site.settings
    if settings.orders is None or settings.key is None:
        return work()
    seal = SiteSeal(settings.id, Path(settings.folder), Path(settings.orders), Path(settings.key))
    seal.check(order, kind, node)
    answer = work()
    seal.sign(answer, order)
    return answer


def _answer(work: Callable[[], RecordDict]) -> RecordDict:
    """An answer, or why there is none. What an error says of the site's data or code stays in the site's own log."""
    try:
        return work()
    except DataError as error:
        log.error("%s", error)
        reason = "its data cannot be used: its own log says why"
    except PluginError as error:
        log.error("%s", error)
        reason = "a package of its own cannot be used: its own log says why"
    except PersonaflError as error:
        log.error("%s", error)
        reason = str(error)
    except Exception as error:
        log.exception("unexpected error")
        reason = f"{type(error).__name__}: its own log says more"
    return RecordDict({"refused": ConfigRecord({"reason": reason})})


def _introduce(site: Site, content: RecordDict) -> RecordDict:
    return RecordDict({"site_info": ConfigRecord(site.introduce())})


def _train(site: Site, content: RecordDict) -> RecordDict:
    order = read_order(site.settings.id, content)
    trained = site.train(order, read_layout(content))
    answer = {"client": site.settings.id, "round": order.round, "steps": trained.steps, "failed": trained.failed}
    return RecordDict({"answer": ConfigRecord(answer), "up": pack(trained.up)})


def _evaluate(site: Site, content: RecordDict) -> RecordDict:
    order = read_order(site.settings.id, content)
    common = unpack(content, "common")["theta"] if "common" in content else None
    measured = site.measure(order, values(content, "order", {"last": bool})["last"], common)
    answer = {"client": site.settings.id, "round": order.round, "withheld": measured.withheld}
    columns = {name: torch.from_numpy(values) for name, values in measured.columns.items()}
    return RecordDict({"answer": ConfigRecord(answer), "columns": pack(columns)})


@cache
def _site(path: str) -> Site:
    return Site(read_site(Path(path)))


def _find_site(context: Context) -> Site:
    _speak()
    path = context.node_config.get("site")
    if not isinstance(path, str) or not path:
        raise ConfigError("the node config has no site: start the SuperNode with --node-config 'site=\"…/site.toml\"'")
    return _site(path)


def _speak() -> None:
    """Let personafl's log go where Flower's goes."""
    flower = logging.getLogger("flwr")
    if not log.handlers:
        log.handlers, log.propagate = list(flower.handlers), not flower.handlers
        log.setLevel(logging.INFO)


client_app = make_client_app(_find_site)
