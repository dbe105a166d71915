"""What arrives of offload's frames, whatever is done to their bytes: a beginning of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from hypothesis import given
from hypothesis import strategies as st

from headrace.offload.connection import AuxiliaryHost, OpenConnection, ServerConnection
from headrace.offload.frames import FrameHeader, FrameKind
from headrace.offload.server import SessionConnection
from offload_frames import KEYS, FrameEnd

Frame = tuple[FrameHeader, bytes]

bodies = st.lists(st.binary(max_size=300), min_size=1, max_size=6)
cuts = st.lists(st.integers(1, 700), max_size=8)


def frames_of(found: Sequence[bytes]) -> list[Frame]:
    return [
        (FrameHeader(FrameKind.ROWS, number, a=7, body_bytes=len(body)), body)
        for number, body in enumerate(found)
    ]


@contextmanager
def at_the_proxy() -> Iterator[tuple[socket.socket, Callable[[], list[Frame]]]]:
    """Yield a socket to a proxy, and what takes in the frames that have arrived there."""
    sent, received = socket.socketpair()
    received.setblocking(False)
    server = ServerConnection(AuxiliaryHost(name="one", address="", port=0))
    server.connected(OpenConnection(received, KEYS))

    def take() -> list[Frame]:
        found = server.frames(lambda head: memoryview(bytearray(head.body_bytes)))
        return [(frame.head, bytes(frame.body)) for frame in found]

    with sent, received:
        yield sent, take


@contextmanager
def at_the_server() -> Iterator[tuple[socket.socket, Callable[[], list[Frame]]]]:
    """Yield the same at a server."""
    sent, received = socket.socketpair()
    session = SessionConnection(received, KEYS)
    with sent, received:
        yield sent, lambda: session.receive() or []


ENDS = {True: at_the_proxy, False: at_the_server}


def arrived(pieces: Sequence[bytes], *, is_server: bool) -> list[Frame]:
    """Return the frames that arrive of pieces, until one is refused."""
    found: list[Frame] = []
    with ENDS[is_server]() as (sent, take), suppress(ValueError, ConnectionError):
        for piece in pieces:
            sent.sendall(piece)
            found += take()
    return found


@given(bodies, cuts, st.booleans())
def test_frames_arrive_as_they_were_sent_in_whatever_pieces(
    found: list[bytes], sizes: list[int], is_server: bool
) -> None:
    frames = frames_of(found)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = FrameEnd(ours, is_server=is_server)
        stream = b"".join(end.sealed(*frame) for frame in frames)
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    assert arrived([*filter(None, pieces), stream or b""], is_server=is_server) == frames


@given(st.data(), bodies, st.booleans())
def test_of_altered_bytes_only_what_came_before_arrives(
    data: st.DataObject, found: list[bytes], is_server: bool
) -> None:
    frames = frames_of(found)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = FrameEnd(ours, is_server=is_server)
        sealed = [end.sealed(*frame) for frame in frames]
        other = FrameEnd(theirs, is_server=not is_server)
        reflected = [other.sealed(*frame) for frame in frames]
    at = data.draw(st.integers(0, len(sealed) - 1))
    whole = sealed[at]
    place = data.draw(st.integers(0, len(whole) - 1))
    altered = {
        "a bit": whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :],
        "a byte more": whole[:place] + b"\0" + whole[place:],
        "a byte less": whole[:place] + whole[place + 1 :],
        "nothing": b"",
        "the one before": sealed[at - 1],
        "the other side's": reflected[at],
        "its beginning": whole[:place],
        "another header": FrameHeader(FrameKind.ROWS, 9).pack() + whole[64:],
        "random bytes": os.urandom(len(whole)),
    }
    change = data.draw(st.sampled_from(sorted(altered)))
    # What follows goes on for long, so that a wrong length has its bytes.
    rest = [*sealed[at + 1 :], bytes(2000)]
    expected = frames[: at + (altered[change] == whole)]
    assert arrived([*sealed[:at], altered[change], *rest], is_server=is_server) in (
        expected,
        frames[: at + 1] if change == "a byte more" and place == len(whole) else expected,
    )
