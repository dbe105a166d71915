from .gallery import Gallery

__all__ = ["Gallery"]
