"""Clients that are elsewhere: on a Ray cluster, in a Flower federation; and what a real federation is deployed with."""
