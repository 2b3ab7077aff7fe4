"""The commands by name. Each is imported when it is used, so that no command waits for the others' imports."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from personafl.errors import PluginError
from personafl.plugins import Plugin, installed

OWN = {
    **{name: f"personafl.cli.{name}:{name}" for name in (
        "demo", "fit", "run", "compare", "report", "watch", "partition", "explain", "personalize", "gain", "audit",
        "export",
    )},
    "list": "personafl.cli.list:list_",
    "deploy": "personafl.cli.deploy:deploy",
    "site": "personafl.cli.site:site",
    "version": "personafl.cli.version:version",
}  # fmt: skip
"""Where personafl's own commands are, in the order that `--help` shows them in."""


class Program(TyperGroup):
    """personafl's own commands and those of installed packages (entry points `personafl.commands`)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands of `--help`, each with the first sentence of its own help, none of them cut short."""
        about = {name: command.help or "" for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.split("\n\n")[0].split())) for name, text in about.items()])


class Commands(MutableMapping[str, Any]):
    """Commands by name, each made when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._plugins: dict[str, Plugin] | None = None

    @property
    def plugins(self) -> dict[str, Plugin]:
        """The commands of installed packages."""
        if self._plugins is None:
            self._plugins = installed("command", "personafl.commands", OWN)[0]
        return self._plugins

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _own(name) if name in OWN else _of_plugin(self.plugins[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*OWN, *self.plugins, *self._made]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _own(name: str) -> Any:
    module, _, function = OWN[name].partition(":")
    return _made(name, getattr(import_module(module), function))


def _of_plugin(plugin: Plugin) -> Any:
    """The command of an installed package; where it cannot be had, one in its place that says why."""
    try:
        return _made(plugin.name, plugin.load())
    except PluginError as error:
        return _missing(plugin.name, error)
    except Exception as error:  # typer cannot make a command of it
        reason = f"command {plugin.name!r} of {plugin.packages} is not a function that typer takes: {error}"
        return _missing(plugin.name, PluginError(reason))


def _made(name: str, found: Any, **settings: Any) -> Any:
    """A command for typer's group, of a function or of a Typer with commands of its own."""
    around = typer.Typer(add_completion=False, rich_markup_mode="rich")
    around.callback()(lambda: None)  # a Typer with a callback is a group, even of one command
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name, **settings)(found)
    group: Any = typer.main.get_command(around)
    return group.commands[name]


def _missing(name: str, error: PluginError) -> Any:
    def missing() -> None:
        raise error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    command = _made(name, missing, context_settings=anything, add_help_option=False)
    command.help = f"cannot be used: {error}"
    return command
