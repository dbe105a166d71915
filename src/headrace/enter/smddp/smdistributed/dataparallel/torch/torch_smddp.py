"""Imported for its effect: it registers the backend `smddp`."""

from .backend import register

register()
