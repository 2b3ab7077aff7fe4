"""The commands of `personafl`, a file for each; `cli.py` puts them together."""
