"""Processes that Headrace starts: parent death, process groups, mounts, supervision."""
