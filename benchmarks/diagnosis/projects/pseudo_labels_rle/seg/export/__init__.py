from .coco import CocoWriter

__all__ = ["CocoWriter"]
