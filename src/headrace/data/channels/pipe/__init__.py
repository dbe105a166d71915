"""Channels as named pipes: each epoch's bytes, fetched as they are read, nothing on disk."""
