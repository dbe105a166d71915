from .recipe import Recipe

__all__ = ["Recipe"]
