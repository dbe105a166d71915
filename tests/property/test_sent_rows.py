"""Rows of another host reach the records once each, whatever is lost or killed on the way."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.observe.whatif.tables import columns
from headrace.records import sent_rows
from headrace.records.collector import Collector
from headrace.records.layout import RINGS
from headrace.records.outbox import OutboxStore, unsent_lines
from headrace.records.reader import Records
from headrace.records.ring import SUFFIX, RingWriter
from headrace.records.schema import EVENTS
from records_folders import collector_of, kill

HOST, AHEAD_NS = 3, 7_000_000_000
ROWS = st.lists(
    st.tuples(st.integers(1, 2**40), st.text(st.characters(codec="utf-8"), max_size=12)),
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), ROWS),
        st.tuples(st.just("collect"), st.booleans()),  # whether its collector is killed then
        st.tuples(st.just("send"), st.booleans()),  # whether the answer is lost
        st.tuples(st.just("take in"), st.booleans()),  # whether the launcher's collector is killed
    ),
    max_size=25,
)


class Hosts:
    """Another host with one process that records, and the launcher's."""

    def __init__(self, folder: Path) -> None:
        self.there = folder / "there"
        self.run = folder / "run"
        self.here = Records(self.run, 1).folder
        self.outbox = self._collector_there()
        self.ring = RingWriter(self.there / RINGS / f"one{SUFFIX}")
        self.collector = collector_of(self.run)
        self.writer = sent_rows.SentRowsWriter(self.here / RINGS, HOST)
        self.received = 0
        self.written: list[tuple[int, str]] = []

    def _collector_there(self) -> Collector:
        return Collector(self.there, "other", open_store=OutboxStore)

    def do(self, what: str, how: list[tuple[int, str]] | bool) -> None:
        if what == "write":
            for at_ns, text in how:
                self.ring.write(EVENTS, -1, at_ns, "kind", text, 0.5)
                self.written.append((at_ns + AHEAD_NS, text))
        elif what == "collect":
            self.outbox.drain()
            if how:
                kill(self.outbox)
                self.outbox = self._collector_there()
        elif what == "send":
            lines = unsent_lines(self.there, self.received, 400)
            if lines and not how:
                self.writer.add(lines, AHEAD_NS)
                self.received = lines[-1].number
        else:
            self.collector.drain()
            if how:
                kill(self.collector)
                self.collector = collector_of(self.run)

    def read(self) -> list[tuple[int, str]]:
        rows = columns(Records(self.run, 1), "events")
        return list(zip(rows["at_ns"].tolist(), map(str, rows["text"]), strict=True))

    def end(self) -> None:
        self.ring.close()
        self.do("collect", how=False)
        while unsent_lines(self.there, self.received, 400):
            self.do("send", how=False)
        assert sorted(self.read()) == sorted(self.written), "before they are taken in, too"
        self.collector.close()
        self.outbox.close(leaves_store=True)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_each_row_is_kept_once(steps: list) -> None:
    with TemporaryDirectory() as folder:
        hosts = Hosts(Path(folder))
        for step in steps:
            hosts.do(*step)
        hosts.end()
        assert sorted(hosts.read()) == sorted(hosts.written)
        assert not list(sent_rows.sent_row_files(hosts.here / RINGS))
