"""What the codes of offload's frames cost: the CPU of sender and receiver, with codes and without.

    python benchmarks/frame_codes.py            # writes a section of docs/offload.md
    python benchmarks/frame_codes.py --dry

A frame goes from a file in memory through a socket of this machine into memory, as a batch goes
from a server's slot into a rank's. Both ends are this process, so its CPU time is that of both
together, the kernel's copies included. The arms take turns, and the ratio is that within one round.
Beside it stand other codes of the same bytes, computed twice, apart from any socket.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import mmap
import os
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.offload.connection import AuxiliaryHost, OpenConnection, ServerConnection
from headrace.offload.frames import FrameCodes, FrameHeader, FrameKind, SessionKeys
from headrace.offload.server import SessionConnection
from report import Row, write_section

PAGE = Path(__file__).parents[1] / "docs" / "offload.md"
KEYS = SessionKeys.derive(b"key", b"nonce of the proxy", b"nonce of the server")
SIZES = {"1 kB": 1_000, "100 kB": 100_000, "1 MB": 1_000_000, "20 MB": 20_000_000}
ROUND_BYTES = 400_000_000
MOST_FRAMES = 20_000


class Transfer:
    """Frames of one size from a file in memory into memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.frames = min(MOST_FRAMES, ROUND_BYTES // size)
        self.file = os.memfd_create("batch")
        os.pwrite(self.file, os.urandom(size), 0)
        self.content = memoryview(mmap.mmap(self.file, size, prot=mmap.PROT_READ))
        self.memory = memoryview(bytearray(size))

    def with_codes(self) -> float:
        """Send all frames by the protocol's own code; return the CPU time of a frame, in s."""
        with _socket_pair() as (here, there):
            sender = SessionConnection(here, KEYS)
            receiver = ServerConnection(AuxiliaryHost(name="", address="", port=0))
            there.setblocking(False)
            receiver.connected(OpenConnection(there, KEYS))
            head = FrameHeader(FrameKind.BATCH)

            def receive() -> int:
                return sum(1 for _ in receiver.frames(lambda _: self.memory))

            return self._time(
                lambda: sender.send_file(head, self.file, self.content), receive, there
            )

    def without(self) -> float:
        """Send as many without codes, as the protocol did before; return the same."""
        with _socket_pair() as (here, there):
            head = FrameHeader(FrameKind.BATCH, body_bytes=self.size).pack()
            got = 0

            def send() -> None:
                here.sendall(head)
                sent = 0
                while sent < self.size:
                    sent += os.sendfile(here.fileno(), self.file, sent, self.size - sent)

            def receive() -> int:
                nonlocal got
                whole = len(head) + self.size
                try:
                    if got < len(head):
                        got += len(there.recv(len(head) - got))
                    got += there.recv_into(self.memory[got - len(head) :])
                except BlockingIOError:
                    return 0
                if got < whole:
                    return 0
                got = 0
                return 1

            there.setblocking(False)
            return self._time(send, receive, there)

    def _time(
        self, send: Callable[[], object], receive: Callable[[], int], there: socket.socket
    ) -> float:
        begun_s = time.process_time()
        sending = threading.Thread(target=lambda: [send() for _ in range(self.frames)])
        sending.start()
        received = 0
        while received < self.frames:
            found = receive()
            received += found
            if not found:
                select.select([there], [], [], 1.0)
        sending.join()
        return (time.process_time() - begun_s) / self.frames


def codes_alone(size: int) -> dict[str, float]:
    """Return the CPU time of codes of so many bytes, in s."""
    content = os.urandom(size)
    codes = FrameCodes(KEYS.to_proxy)

    def poly1305() -> None:
        code = codes.body()
        code.update(content)
        code.finalize()

    arms: dict[str, Callable[[], object]] = {
        "Poly1305": poly1305,
        "HMAC-SHA-256": lambda: hmac.digest(KEYS.to_proxy, content, "sha256"),
        "keyed BLAKE2b": lambda: hashlib.blake2b(content, key=KEYS.to_proxy).digest(),
    }
    times = max(3, 100_000_000 // size // 4)
    return {name: _seconds_each(arm, times) for name, arm in arms.items()}


def _seconds_each(arm: Callable[[], object], times: int) -> float:
    arm()
    begun_s = time.process_time()
    for _ in range(times):
        arm()
    return (time.process_time() - begun_s) / times


@contextmanager
def _socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected TCP sockets of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    with here, there:
        yield here, there


def main() -> None:
    """Measure each size in turns, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    table = [
        "| frame | cores more at 1 GB/s, both ends | Poly1305 alone | HMAC-SHA-256 | BLAKE2b |",
        "|---|---|---|---|---|",
    ]
    rows: list[Row] = []
    for name, size in SIZES.items():
        transfer = Transfer(size)
        ratios, costs, alone = [], [], []
        for _ in range(options.rounds):
            without_s, with_s = transfer.without(), transfer.with_codes()
            ratios.append(with_s / without_s)
            costs.append(with_s - without_s)
            alone.append(codes_alone(size))
        medians = [statistics.median(one[each] for one in alone) for each in alone[0]]
        cells = [2 * cost / size * 1e9 for cost in medians]  # at both ends, as the first column
        added = statistics.median(costs) / size * 1e9
        table.append(f"| {name} | {added:.3g} | {' | '.join(f'{cell:.3g}' for cell in cells)} |")
        rows.append(Row(f"frames of {name}: CPU with codes / without", ratios, ""))
    command = "python benchmarks/frame_codes.py"
    write_section("Authentication codes", command, table, rows, page=PAGE, dry=options.dry)


if __name__ == "__main__":
    main()
