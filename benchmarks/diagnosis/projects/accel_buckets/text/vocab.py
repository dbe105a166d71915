import random


class WordTokenizer:
    """A word-level tokenizer with the parts of the HF interface that we need."""

    def __init__(self, words):
        self.index = {w: i + 4 for i, w in enumerate(dict.fromkeys(words))}
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id = 0, 1, 2, 3

    def __len__(self):
        return len(self.index) + 4

    def encode(self, text, max_length):
        get, unk = self.index.get, self.unk_token_id
        ids = [get(w, unk) for w in text.split()[: max_length - 2]]
        return [self.cls_token_id, *ids, self.sep_token_id]


def make_texts(n, n_words=1500, length=(90, 160), seed=2):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvwz", k=rng.randint(2, 9))) for _ in range(n_words)]
    texts, labels = [], []
    for i in range(n):
        label = i % 4
        pool = words[label * 300 : label * 300 + 600]
        texts.append(" ".join(rng.choices(pool, k=rng.randint(*length))))
        labels.append(label)
    return words, texts, labels
