"""Batches of a loader made on auxiliary hosts, over an authenticated connection, without Ray."""
