"""The disk cache of remote objects."""
