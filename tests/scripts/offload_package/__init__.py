"""Lies beside a script."""
