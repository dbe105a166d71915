"""Batches ahead are bounded by bytes: in a rank, before and after a size is known, and on hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.data.loader.executors.dispatch import RemoteTasks
from headrace.data.loader.memory_budget import usable_memory
from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import write_at
from headrace.offload.capacity import SessionSlots

MIB, GIB = 1 << 20, 1 << 30
DEPTH, ROOM = 4, 200


def made(size_bytes: int) -> AnswerMessage:
    return AnswerMessage(Answer.MADE, 0, 0, 0, size_bytes - 100, 100)


def remote_with(memory_bytes: int) -> RemoteTasks:
    client: Any = SimpleNamespace(
        most_bytes=memory_bytes, max_open_tasks=96
    )  # it is asked for nothing
    remote = RemoteTasks(client)
    remote.note(AnswerMessage(Answer.ROOM, 0, ROOM, 0, 0, 0))
    return remote


def test_until_a_batch_has_come_they_are_taken_to_be_large():
    remote = remote_with(6 * GIB)
    assert remote.max_in_flight(DEPTH) == remote.most_fitting == 12
    remote.note(AnswerMessage(Answer.FAILED, 0, 0, 0, 0, 100))
    assert remote.max_in_flight(DEPTH) == 12, "an error says nothing of batches"
    remote.note(made(10 * MIB))
    assert remote.max_in_flight(DEPTH) == 2 * (DEPTH + ROOM)


def test_the_largest_batch_so_far_counts():
    remote = remote_with(6 * GIB)
    for size_bytes, most in ((256 * MIB, 24), (MIB, 24), (768 * MIB, 8), (MIB, 8)):
        remote.note(made(size_bytes))
        assert remote.max_in_flight(DEPTH) == remote.most_fitting == most


def test_however_little_memory_there_is_helpers_get_one_to_begin_with():
    remote = remote_with(100 * MIB)
    assert remote.max_in_flight(DEPTH) == DEPTH + 1
    remote.note(made(GIB))
    assert remote.max_in_flight(DEPTH) == DEPTH, "as many as the workers here have anyway"


class Session:
    """Slots of a session, whose part of the memory a test sets."""

    def __init__(self, memory_bytes: int) -> None:
        self.takes = self.keeps = memory_bytes
        self.slots = SessionSlots(8, lambda: (self.takes, self.keeps))

    def fill(self, size_bytes: int) -> int:
        """Have a batch made; return its slot."""
        slot = self.slots.take()
        self.slots.write(slot, b"order")
        write_at(self.slots.descriptors[slot], 0, bytes(size_bytes))
        self.slots.note(size_bytes)
        return slot

    @property
    def held_bytes(self) -> int:
        return sum(os.fstat(descriptor).st_size for descriptor in self.slots.descriptors)


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session(3 * MIB)
    yield session
    session.slots.close()


def test_a_session_takes_as_many_slots_as_its_memory_has_room_for(session: Session):
    assert session.slots.task_limit_within(7) == 7, (
        "a host's part is not small before a size is known"
    )
    taken = [session.fill(MIB)]
    while session.slots.has_room:
        taken.append(session.fill(MIB))
    assert len(taken) == session.slots.task_limit_within(7) == 3
    session.slots.give(taken.pop())
    assert session.slots.has_room


def test_small_batches_are_bounded_by_the_number_of_slots_alone(session: Session):
    for _ in range(8):
        assert session.slots.has_room
        session.fill(1000)
    assert not session.slots.has_room
    assert session.slots.task_limit_within(7) == 7


def test_one_batch_has_room_on_a_host_without_memory(session: Session):
    session.takes = session.keeps = 0
    assert session.slots.has_room
    slot = session.fill(MIB)
    assert not session.slots.has_room
    session.slots.leave(slot)
    assert session.slots.has_room, "a slot that is given up holds up nobody"
    assert session.slots.task_limit_within(7) == 1


def test_free_slots_keep_no_more_memory_than_they_may(session: Session):
    taken = [session.fill(MIB // 2) for _ in range(6)]
    for slot in taken[2:]:
        session.slots.give(slot)
    session.slots.trim()
    assert session.held_bytes == 3 * MIB, "the next batches find it warm"
    session.keeps = 2 * MIB
    session.slots.trim()
    assert session.held_bytes == 2 * MIB
    session.keeps = 0
    session.slots.trim()
    assert session.held_bytes == MIB, "those in use stay"
    assert os.fstat(session.slots.descriptors[taken[0]]).st_size == MIB // 2


MOUNTS = {
    1: "30 1 0:26 {root} {mount} rw - cgroup cgroup rw,memory",
    2: "30 1 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw",
}
NO_LIMIT_V1 = 2**63 - 4096


def write_group(group: Path, version: int, limit: int | None, used: int, of_files: int) -> None:
    """Write what the kernel says of a control group; sizes in MiB, no limit is None."""
    group.mkdir(parents=True, exist_ok=True)
    if version == 1:
        limit_bytes = NO_LIMIT_V1 if limit is None else limit * MIB
        names, total = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
        statistics = "cache 1\nactive_file 4096\ninactive_file 0\n"  # without the groups in it
    else:
        limit_bytes = None if limit is None else limit * MIB
        names, total = ("memory.max", "memory.current"), ""
        statistics = f"anon 7\nfile {of_files * MIB}\nshmem 0\n"
    (group / names[0]).write_text(f"{'max' if limit_bytes is None else limit_bytes}\n")
    (group / names[1]).write_text(f"{used * MIB}\n")
    active = of_files * MIB // 2
    statistics += f"{total}active_file {active}\n"
    statistics += f"{total}inactive_file {of_files * MIB - active}\n"
    (group / "memory.stat").write_text(statistics)


@pytest.mark.parametrize(
    ("version", "cgroup", "root", "groups", "left"),
    [
        (2, "0::/", "/", {"": (64, 60, 0)}, 4),
        (2, "0::/", "/", {"": (64, 64, 50)}, 50),  # a container that has read a dataset
        (2, "0::/", "/", {"": (64, 70, 0)}, 0),
        (2, "0::/pod/a", "/pod/a", {"": (64, 60, 20)}, 24),
        (2, "0::/job/step", "/", {"job": (64, 40, 10), "job/step": (None, 30, 10)}, 34),
        (2, "0::/job/step", "/", {"job": (64, 40, 0), "job/step": (32, 30, 1)}, 3),
        (1, "4:memory:/docker/a", "/docker/a", {"": (64, 60, 20)}, 24),
        (1, "4:memory:/job/1", "/", {"job": (None, 60, 0), "job/1": (48, 8, 4)}, 44),
        (2, "0::/", "/", {"": (None, 60, 0)}, None),
        (1, "4:memory:/a", "/", {"a": (None, 60, 0)}, None),
        (2, "", "/", {}, None),
    ],
)
def test_memory_is_what_every_control_group_leaves_and_files_take_none(
    version: int,
    cgroup: str,
    root: str,
    groups: dict[str, tuple[int | None, int, int]],
    left: int | None,
    tmp_path: Path,
):
    proc, mount = tmp_path / "self", tmp_path / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(MOUNTS[version].format(root=root, mount=mount))
    for name, sizes in groups.items():
        write_group(mount / name, version, *sizes)
    found = usable_memory(proc)
    assert found > 64 * MIB if left is None else found == left * MIB
