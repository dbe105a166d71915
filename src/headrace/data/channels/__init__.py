"""Channels: the named inputs of a job, and how they reach a host."""
