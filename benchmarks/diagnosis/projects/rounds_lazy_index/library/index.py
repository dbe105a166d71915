import json
import random


def write(path, rows):
    pick = random.Random(0)
    with open(path, "w") as out:
        for n in range(rows):
            out.write('{"id": %d, "offset": %d, "tags": [%d, %d]}\n' % (n, n * 512, n % 7, pick.randrange(100)))


class Index:
    def __init__(self, path):
        self.entries = self._parse(path)

    @staticmethod
    def _parse(path):
        with open(path) as lines:
            return [json.loads(line) for line in lines]

    def tags(self, n):
        return self.entries[n]["tags"]
