"""Lines that make something grow that outlives them, told by the source."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from headrace.observe.doctor.growing import growing_lines

LOOP = """
def main():
    {before}
    for epoch in range(3):
        for number, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            value = loss.item()
{inside}
"""


def grown(inside: str, before: str = "history = []") -> list[tuple[str, str]]:
    """The lines that grow something in a training loop, and what."""
    source = LOOP.format(before=before, inside=indent(dedent(inside).strip(), " " * 12))
    found = growing_lines(source, "main", 5, stays=True)
    return [(source.splitlines()[each.line - 1].strip(), each.what) for each in found]


@pytest.mark.parametrize(
    ("inside", "before", "what"),
    [
        ("history.append(loss)", "history = []", "history"),
        ("history += [loss]", "history = []", "history"),
        ("history = history + [x]", "history = []", "history"),
        ("history.append({'loss': value, 'x': x})", "history = []", "history"),
        ("log['loss'].append(loss)", "log = {'loss': []}", "log"),
        ("log.setdefault(epoch, []).append(loss)", "log = {}", "log"),
        ("seen[number] = x", "seen = {}", "seen"),
        ("seen[number] = x", "seen = [None] * 100", "seen"),
        ("total += loss", "total = 0", "total"),
        ("total = total + loss / 2", "total = 0", "total"),
        ("outputs = torch.cat([outputs, x])", "outputs = torch.empty(0)", "outputs"),
        ("if number % 2:\n    history.append(loss)", "history = []", "history"),
        ("self.history.append(loss)", "pass", "self.history"),
        ("history.append(loss)", "pass", "history"),
    ],
)
def test_what_is_kept_is_found(inside: str, before: str, what: str):
    lines = [line.strip() for line in inside.splitlines()]
    assert grown(inside, before) == [(lines[-1], what)]


@pytest.mark.parametrize(
    ("inside", "before"),
    [
        ("history.append(value)", "history = []"),
        ("history.append((number, loss.item(), float(loss)))", "history = []"),
        ("history.append(f'{number}: {value}')", "history = []"),
        ("total += loss.item() * x.shape[0]", "total = 0"),
        ("total += loss.detach()", "total = 0"),
        ("right += (model(x).argmax(1) == y).sum()", "right = 0"),
        ("history.append(loss)", "history = collections.deque(maxlen=100)"),
        ("history.append(loss)\nif number % 100 == 0:\n    history.clear()", "history = []"),
        ("total += loss\nif number % 100 == 0:\n    total = 0", "total = 0"),
        ("parts = []\nparts.append(x)", "pass"),
        ("history.append(x)\nhistory.pop(0)", "history = []"),
        ("buffer[number] = x", "buffer = torch.empty(100, 3)"),
        ("meter.update(loss)", "meter = Meter()"),
        ("x = x + loss", "pass"),
        ("names.add(str(number))", "names = set()"),
    ],
)
def test_what_is_small_emptied_or_of_a_fixed_size_is_not(inside: str, before: str):
    assert grown(inside, before) == []


DATASET = """
class Images:
    def __init__(self):
        self.cache = {}
        self.last = []

    def __getitem__(self, index):
        parts = []
        for name in self.names[index]:
            parts.append(load(name))
        self.last = []
        self.last.append(parts)
        self.cache[index] = join(parts)
        return self.cache[index]
"""


def test_of_a_function_that_is_called_anew_only_what_it_shares_grows():
    found = growing_lines(DATASET, "Images.__getitem__", 9, stays=False)
    assert [(each.line, each.what) for each in found] == [(13, "self.cache")]


def test_what_another_method_empties_does_not_grow():
    emptied = DATASET + "\n    def on_epoch_end(self):\n        self.cache.clear()\n"
    assert growing_lines(emptied, "Images.__getitem__", 9, stays=False) == []


def test_the_file_itself_holds_a_loop():
    loop = ["kept = []", "for x in loader:", "    loss = f(x)", "    loss.backward()"]
    source = "\n".join([*loop, "    kept.append(loss)"])
    (found,) = growing_lines(source, "<module>", 3, stays=True)
    assert (found.line, found.what, found.certainty) == (5, "kept", 2)


def test_a_kept_graph_comes_before_what_is_only_kept():
    lines = grown("names.append(x)\nlosses.append(loss)", "names, losses = [], []")
    assert [what for _, what in lines] == ["losses", "names"]


@pytest.mark.parametrize(
    ("renewed", "what"),
    [
        ("history = []", "history"),
        ("history.clear()", "history"),
        ("total = 0", "total"),
        ("log['loss'] = []", "log"),
        ("self.outputs = []", "self.outputs"),
    ],
)
@pytest.mark.parametrize("around", ["for epoch in range(3):", "while step < last:"])
def test_what_each_epoch_begins_anew_does_not_outlive_it(renewed: str, what: str, around: str):
    add = {"total": "total += loss", "log": "log['loss'].append(loss)"}.get(
        what, f"{what}.append(loss)"
    )
    head = ["def main(self):", "    history, total, log = [], 0, {}"]
    inner = ["for x in loader:", "    loss = model(x)", "    loss.backward()", f"    {add}"]
    kept = [*head, f"    {around}", *(f"        {line}" for line in inner)]
    anew = [*kept[:3], f"        {renewed}", *kept[3:]]
    found = growing_lines("\n".join(kept), "main", 5, stays=True)
    assert [(each.line, each.what) for each in found] == [(7, what)]
    assert growing_lines("\n".join(anew), "main", 5, stays=True) == []


@pytest.mark.parametrize("source", ["", "def main(:\n", "x = 1\n", "\0"])
def test_a_source_that_has_changed_tells_nothing(source: str):
    assert growing_lines(source, "main", 5, stays=True) == []
