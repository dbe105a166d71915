"""Batches made on auxiliary hosts, over a socket: the station there, the receiver here."""
