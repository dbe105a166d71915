from .bpe import BytePairs
from .collator import EncodeAndPad

__all__ = ["BytePairs", "EncodeAndPad"]
