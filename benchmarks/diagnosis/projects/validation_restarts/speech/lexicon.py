"""The pronunciation lexicon that scoring needs; each process builds its own."""

_LEXICON = None


def pronounce(word):
    return tuple(map(ord, word[:3]))


def build(size=700_000):
    table = {}
    for n in range(size):
        word = "%07x" % (n * 2654435761 % 2**28)
        table[word] = pronounce(word)
    return table


def attach(worker_id):
    global _LEXICON
    _LEXICON = build()


def lookup(number):
    return _LEXICON["%07x" % (number * 2654435761 % 2**28)] if _LEXICON else (0, 0, 0)
