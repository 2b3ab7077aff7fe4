"""Partitions of the papers."""
