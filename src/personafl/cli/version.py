"""`personafl version`."""

from personafl.version import __version__


def version() -> None:
    """Print the version.

    Examples:

      personafl version
    """
    print(__version__)
