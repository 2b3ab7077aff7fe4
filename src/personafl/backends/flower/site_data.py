"""The file that describes a site, and the data that it names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from personafl.algorithms import ALGORITHMS
from personafl.backends.flower.policy import FILE, read_policy
from personafl.backends.flower.vectors import WordVectorFile
from personafl.config import read_tables
from personafl.errors import ConfigError, DataError, PersonaflError
from personafl.federation import DEFAULT_SPLITS, Federation
from personafl.federation.folders import read_client
from personafl.federation.labels import LabelType
from personafl.federation.missing import Missing
from personafl.federation.tabular import read_rows
from personafl.federation.tabular_files import SUFFIXES, open_table
from personafl.federation.tabular_roles import Columns
from personafl.inputs import some
from personafl.pretrained.backbone import Backbone
from personafl.pretrained.loading import BackboneSettings
from personafl.registry import checked
from personafl.settings import check


@dataclass(frozen=True)
class SiteSettings:
    """A site: one client of a federation, as its TOML file describes it.

    Parameters
    ----------
    id
        What this client is called in the federation.
    data
        A `.npz` file as in docs/your-data.md; a table (.csv, .csv.gz, .parquet) with the column `label`; or what
        `Federation.save` wrote.
    folder
        Where `state/` and `models/` are.
    group
        The group of this client (a device type, a region).
    splits
        The shares of train, validation and test, where the data has no splits of its own.
    length
        What samples of unequal length are padded to: the same number at all sites.
    allow
        The algorithms that this site takes part in; all, if left out.
    least_noise
        The noise multiplier that a run's `[privacy]` must have at the least for this site to train in it.
    most_epsilon, delta
        The ε that all answers of this site may add up to, over all runs, at this δ; left out, there is no limit. What
        is spent is in the site's ledger.
    metrics
        Whether the operator gets metrics. Left out: unless `least_noise` or `most_epsilon` asks for privacy.
    least_batch_size, least_steps, least_samples
        What training must have at the least for its answer to leave this site: samples in a batch, and no sample with
        more weight in the answer than 1 of so many; steps; different training samples.
    least_together
        Of how many sites' answers the sum must be at the least that the operator gets: above 1, this site's answer goes
        out by secure aggregation only, in runs with `[secure]`.
    most_steps, most_parameters
        What this site does for a message at the most: steps, and parameters of a model.
    label, features, split
        Of a table: the column of labels, which are numbers; those of features (all others that hold numbers, if left
        out); the one that says train, val or test.
    missing
        `error`; or `fill`: NaN, or what a table lacks, becomes the median of this site's own training samples, and
        after all features comes one for each, with gaps or without, that is 1 where the value was missing and else 0:
        so all sites have samples of the same shape, (2 d).
    label_type
        What labels are, as in docs/your-data.md, where floats are whole numbers: `classes` or `numbers`.
    threads
        torch threads. Their number changes the last bits of a result.
    orders, key
        The operator's public key, without whose signature nothing is done; and this site's private key, which signs
        its answers. Both or neither.
    members
        The folder of all sites' public keys, NAME.pub each, by which this site knows them in secure aggregation. Left
        out, the operator is trusted to pass on their keys.
    backbone
        A table: the frozen backbone that samples go through, with weights on this site's own disk, see
        `BackboneSettings`. A run says which hash they must have.
    weights
        The folder of a pretrained model of transformers, on this site's own disk, for runs that train adapters to it
        (model lora). A run says which hash it must have, and samples stay as they are.
    vectors
        A table: the word vectors on this site's own disk, for runs whose model takes some, see `WordVectorFile`. A run
        says which hash they must have.
    policy
        The file of this site's `Policy`, without which nothing runs; left out, `policy.toml` where there is one.
    """

    id: str
    data: str
    folder: str
    group: str | None = None
    splits: tuple[float, float, float] = DEFAULT_SPLITS
    length: int | None = None
    allow: tuple[str, ...] = ()
    least_noise: float = 0.0
    most_epsilon: float | None = None
    delta: float = 1e-5
    metrics: bool | None = None
    least_batch_size: int = 8
    least_steps: int = 1
    least_samples: int = 16
    least_together: int = 1
    most_steps: int = 1_000_000
    most_parameters: int = 100_000_000
    label: str | None = None
    features: tuple[str, ...] | None = None
    split: str | None = None
    missing: Literal["error", "fill"] = "error"
    label_type: LabelType = "auto"
    threads: int = 1
    orders: str | None = None
    key: str | None = None
    members: str | None = None
    backbone: BackboneSettings | None = None
    weights: str | None = None
    vectors: WordVectorFile | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        check("id", self.id, bool(self.id) and self.id.isprintable() and len(self.id) <= 200, "1 to 200 characters")
        check("length", self.length, self.length is None or self.length >= 1, "at least 1")
        check("threads", self.threads, self.threads >= 1, "at least 1")
        both = (self.orders is None) == (self.key is None)
        check("orders", self.orders, both, "the operator's public key, with key, this site's private one; or neither")
        check("least_noise", self.least_noise, self.least_noise >= 0, "at least 0")
        check("most_epsilon", self.most_epsilon, self.most_epsilon is None or self.most_epsilon > 0, "above 0")
        check("delta", self.delta, 0 < self.delta < 1, "in (0, 1)")
        limits = ("least_batch_size", "least_steps", "least_samples", "least_together", "most_steps", "most_parameters")
        for key in limits:
            check(key, getattr(self, key), getattr(self, key) >= 1, "at least 1")
        for name in self.allow:
            check("allow", name, name in ALGORITHMS, f"among the algorithms: {', '.join(ALGORITHMS)}")

    @property
    def reports_metrics(self) -> bool:
        """Whether the operator gets metrics."""
        return not (self.least_noise or self.most_epsilon) if self.metrics is None else self.metrics

    @property
    def states(self) -> Path:
        """The folder of what the client keeps between rounds."""
        return Path(self.folder) / "state"

    @property
    def models(self) -> Path:
        """The folder of the personalized model."""
        return Path(self.folder) / "models"


def read_site(path: Path) -> SiteSettings:
    """Read a site's TOML file; its paths start at the file's own folder."""
    values = read_tables(path)
    try:
        settings: SiteSettings = checked(SiteSettings, "", values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    folder = path.resolve().parent
    named = {name: getattr(settings, name) for name in ("data", "folder", "orders", "key", "members", "weights")}
    paths: dict[str, Any] = {
        name: str(folder / Path(value).expanduser()) for name, value in named.items() if value is not None
    }
    if settings.backbone is not None and settings.backbone.path is not None:
        paths["backbone"] = replace(settings.backbone, path=str(folder / Path(settings.backbone.path).expanduser()))
    if settings.vectors is not None:
        paths["vectors"] = settings.vectors.beside(path)
    return _with_policy(replace(settings, **paths), path, values)


def _with_policy(settings: SiteSettings, path: Path, said: dict[str, Any]) -> SiteSettings:
    """The settings with what the site's policy says in their place."""
    file = path.resolve().parent / Path(settings.policy or FILE).expanduser()
    if settings.policy is None and not file.exists():
        return settings
    limits = read_policy(file).limits
    if both := [key for key in limits if key in said]:
        raise ConfigError(f"{both[0]} is in {path} and in {file.name}: keep it in one of them")
    try:
        return replace(settings, policy=str(file), **limits)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def read_data(settings: SiteSettings, seed: int = 0, classes: int | None = None) -> Federation:
    """The data of a site: a federation of one client; its features, where the site has a backbone.

    Parameters
    ----------
    seed
        The split follows from it and from the client's id, where the data has none.
    classes
        How many there are in the whole federation; a site need not have samples of each.
    """
    data = _read_samples(settings, seed, classes)
    found = settings.backbone
    if found is None:
        return data
    try:
        return data.through(_backbone(found), batch_size=found.batch_size, device=found.device, progress=False)
    except PersonaflError as error:
        raise type(error)(f"site {settings.id}: {error}") from error


@lru_cache(maxsize=1)
def _backbone(settings: BackboneSettings) -> Backbone:
    """Read once: every message of the server asks for the data."""
    return settings.load()


def _read_samples(settings: SiteSettings, seed: int, classes: int | None) -> Federation:
    path = Path(settings.data)
    if path.is_dir():
        if settings.missing != "error":
            raise ConfigError(f"site {settings.id}: missing has no place here, a saved federation has no gaps")
        return _only(_load(str(path)), settings, classes)
    if not path.is_file():
        raise DataError(f"site {settings.id}: there is no data at {path}")
    group: str | None = settings.group
    brought: Any
    if path.name.endswith(SUFFIXES):
        brought = _read_table(path, settings)
    else:
        brought, named = read_client(path)
        group = group or named
    return Federation.from_clients(
        {settings.id: brought},
        groups=None if group is None else {settings.id: group},
        splits=settings.splits,
        seed=seed,
        classes=classes,
        length=settings.length,
        label_type=settings.label_type,
        missing=_missing(settings),
        name=settings.id,
    )


def _missing(settings: SiteSettings) -> Missing:
    """A site does not know where others have gaps: every feature has an indicator."""
    return "fill-all" if settings.missing == "fill" else "error"


@lru_cache(maxsize=1)
def _load(path: str) -> Federation:
    """A saved federation; a simulator's process has many sites with parts of the same."""
    return Federation.load(path)


def _only(saved: Federation, settings: SiteSettings, classes: int | None) -> Federation:
    """The one client of a saved federation that a site is."""
    if len(saved) > 1 and settings.id not in saved.ids:
        raise DataError(f"{settings.data} holds {len(saved)} clients, and none is called {settings.id!r}")
    place = saved.index(settings.id) if settings.id in saved.ids else 0
    first, last = saved.bounds[place, 0], saved.bounds[place, 3]
    group = settings.group or (None if saved.groups is None else saved.groups[place])
    return replace(
        saved,
        x=some(saved.x, slice(first, last)),
        y=saved.y[first:last],
        bounds=saved.bounds[place : place + 1] - first,
        ids=(settings.id,),
        groups=None if group is None else (group,),
        classes=classes or saved.classes,
        truth={},
        scanned=True,
    )


def _read_table(path: Path, settings: SiteSettings) -> Any:
    """What a table holds, as `from_clients` takes it."""
    if settings.label is None:
        raise ConfigError(f"site {settings.id}: {path.name} is a table, so label must name its column of labels")
    columns = Columns(
        settings.label, settings.split, settings.features, label_type=settings.label_type, missing=_missing(settings)
    )
    rows = read_rows([open_table(path)], columns)
    if rows.class_names is not None:
        raise DataError(
            f"site {settings.id}: the labels of {path.name} are text, which each site would number in its own way; "
            "write the numbers of the classes there, the same at all sites"
        )
    if settings.split is None:
        return rows.x, rows.y
    out: dict[str, Any] = {}
    for number, name in enumerate(rows.ids):  # the column of splits was read as one of clients
        if name not in ("train", "val", "test"):
            raise DataError(f"site {settings.id}: column {settings.split!r} holds {name!r}; expected train, val, test")
        out[name] = rows.x[rows.owner == number], rows.y[rows.owner == number]
    return out
