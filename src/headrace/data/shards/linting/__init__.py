"""Checks of what lies in a store against the index."""
