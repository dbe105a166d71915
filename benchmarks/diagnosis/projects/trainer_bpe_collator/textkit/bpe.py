"""Byte pair encoding in plain Python, without a cache."""
import itertools
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NEVER = 10**9


class BytePairs:
    def __init__(self, more=3000, seed=0):
        pick = random.Random(seed)
        pairs = list(itertools.product(LETTERS, LETTERS))
        pick.shuffle(pairs)
        twos = ["".join(pair) for pair in pairs]
        pairs += [(pick.choice(twos), pick.choice(twos)) for _ in range(more)]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}

    def _merge(self, word):
        symbols = list(word)
        while len(symbols) > 1:
            rank, at = min((self.ranks.get(pair, NEVER), i) for i, pair in enumerate(zip(symbols, symbols[1:])))
            if rank == NEVER:
                break
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return symbols

    def encode(self, text):
        out = []
        for word in text.split():
            out.extend(hash(symbol) % 8000 + 1 for symbol in self._merge(word))
        return out
