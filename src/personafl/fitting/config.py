"""The job of a config, ready for a fit."""

from __future__ import annotations

import logging

from personafl.config import Config
from personafl.errors import ConfigError
from personafl.fitting.validation import with_validation
from personafl.jobs import config_job
from personafl.settings import BACKEND_NAMES, EngineSettings
from personafl.training.job import Job

log = logging.getLogger("personafl")


def config_job_to_fit(config: Config) -> Job:
    """The job of a config whose federation has validation data. Its algorithm is not looked at."""
    check_engine(config.engine)
    if config.privacy is not None:
        raise ConfigError("[privacy]: a fit tries many trainings, whose privacy would add up; leave it out")
    if config.robust is not None:
        raise ConfigError("[robust]: a fit trains where nobody attacks; leave it out, and put it into chosen.toml")
    federation = with_validation(config.federation(), config.seed)
    for note in federation.notes:
        log.warning("%s", note)
    return config_job(config, federation)


def check_engine(engine: EngineSettings) -> None:
    """Refuse backends, where a single run's clients are elsewhere."""
    if engine.name in BACKEND_NAMES:
        raise ConfigError(
            f"engine = {engine.name!r}: a fit trains in this process; leave it out, and give chosen.toml to the "
            "backend afterwards"
        )
