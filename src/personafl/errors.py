"""What personafl says when something is wrong, and the exit code that goes with it."""


class PersonaflError(Exception):
    """A problem that one clear line explains; the command line prints it without a stack trace.

    Messages name the thing that is wrong, where it is, and what to do.
    """

    exit_code = 2


class ConfigError(PersonaflError):
    """A setting is unknown, has the wrong type, or is out of range."""


class PluginError(ConfigError):
    """Something of an installed package, or a class that a config names, cannot be used."""


class DataError(PersonaflError):
    """The clients' data cannot be used as it is."""


class ModelError(PersonaflError):
    """The model cannot be trained as a function of a parameter vector."""


class RunError(PersonaflError):
    """A run folder cannot be used as asked: it holds another run, is unwritable, is damaged."""


class TrainingFailed(PersonaflError):
    """Training itself broke down: every client of a cohort diverged."""

    exit_code = 3
