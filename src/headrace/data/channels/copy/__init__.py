"""Copies of remote channels on this host: fetched once, verified, shared by its jobs."""
