"""A stand-in for a trainer of a library: three lines of a script are enough."""

from yolish.trainer import fit, rebuilt

__all__ = ["fit", "rebuilt"]
