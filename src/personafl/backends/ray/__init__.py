"""Clients spread over the actors of a Ray cluster, each with a shard of the data."""
