"""Which files of a folder wait for each other: those of one checkpoint, and no others.

The clock is the test's, so that what settles does so without anybody waiting.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from headrace.jobs.sync.remote_copy import RemoteCopy
from headrace.jobs.sync.sync_process import restore
from jobs_here import run_job
from synced_folder import SyncedFolder

JOB_BEGAN_NS = 10**18


class Host(SyncedFolder):
    """A host whose script writes to `folder`."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, since_ns=JOB_BEGAN_NS)

    def write(self, name: str, data: bytes = b"whole") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def listed(self) -> dict[str, str]:
        """The checksums of the files that a restored folder would have, by name."""
        return {name: file.checksum for name, file in self.remote.newest().files.items()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def cut_short(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "x" * 10_000)
    os.truncate(path, 5_000)


in_each_place = pytest.mark.parametrize(
    "place", ["", "exp1/", "deep/er/", "version_0/checkpoints/", "checkpoints/"]
)


@in_each_place
@pytest.mark.parametrize("name", ["log.txt", "epoch_3.pt"])
def test_a_file_that_is_open_holds_back_no_other(host: Host, place: str, name: str) -> None:
    others = {f"{place}{each}" for each in ("epoch_4.pt", "best.pt", "last_checkpoint")}
    with host.write(f"{place}{name}").open("ab") as file:
        file.write(b"more")
        file.flush()
        for each in others:
            host.write(each)
        host.passes(0.0, 2.0)
        assert host.listed().keys() == others
    host.passes(2.0, 2.0)
    assert host.listed().keys() == {*others, f"{place}{name}"}


@in_each_place
def test_a_log_that_never_rests_holds_back_no_checkpoint(host: Host, place: str) -> None:
    host.write(f"{place}model_0004999.pth")
    for line in range(8):
        with (host.folder / f"{place}metrics.json").open("a") as log:
            log.write(f"{line}\n")
        host.passes(0.5)
    assert host.listed().keys() == {f"{place}model_0004999.pth"}


@in_each_place
def test_a_file_that_is_cut_short_holds_back_no_other_and_is_named_at_the_end(
    host: Host, place: str
) -> None:
    left = f"{place}epoch_3.pt"
    cut_short(host.write(left))
    later = {f"{place}epoch_{number}.pt" for number in range(4, 11)}
    for name in later:
        host.write(name)
        host.passes(0.0, 2.0)
    assert host.listed().keys() == later
    done = host.sync.one_pass(at_the_end=True)
    assert (done.waiting, done.problems) == ((left,), {left: "its end is missing"})
    host.write(left)
    host.passes(0.0, 2.0)
    assert host.listed().keys() == {*later, left}


ONE_CHECKPOINT = {
    "Hugging Face": [
        "checkpoint-500/model.bin", "checkpoint-500/trainer_state.json",
        "checkpoint-500/global_step500/mp_rank_00_model_states.pt",
    ],
    "DeepSpeed": [
        "global_step100/mp_rank_00_model_states.pt",
        "global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
    "DeepSpeed's with a tag": [
        "best/mp_rank_00_model_states.pt", "best/layer_00-model_00-model_states.pt",
        "best/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
    "Lightning": ["last.ckpt/checkpoint/mp_rank_00_model_states.pt", "last.ckpt/latest"],
    "distributed": ["last/__0_0.distcp", "last/__1_0.distcp", "last/.metadata"],
    "distributed, at the top": ["__0_0.distcp", "__1_0.distcp", ".metadata"],
    "shards": [
        "final/model-00001-of-00002.safetensors", "final/model-00002-of-00002.safetensors",
        "final/model.safetensors.index.json",
    ],
    "shards, at the top": [
        "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
        "pytorch_model.bin.index.json",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ONE_CHECKPOINT)
def test_files_of_one_checkpoint_are_listed_all_at_once_whichever_is_written_last(
    host: Host, kind: str
) -> None:
    names = ONE_CHECKPOINT[kind]
    before: dict[str, str] = {}
    for number, last in enumerate(names):
        header = b"{" + b" " * number + b"}"
        data = len(header).to_bytes(8, "little") + header  # whole, as safetensors too
        for name in names:
            if name != last:
                host.write(name, data)
        with host.write(last, data[:9]).open("ab") as file:
            host.passes(0.0, 6.0, 6.0)
            assert host.listed() == before
            file.write(data[9:])
        host.passes(0.0, 6.0)
        before = host.listed()
        assert before.keys() == set(names)
        assert len(set(before.values())) == 1


def test_parts_of_a_checkpoint_hold_back_nothing_else_in_their_folder(host: Host) -> None:
    others = {"last/log.txt", "last/model-00001-of-00001.bin", "last/epoch_1.pt"}
    with host.write("last/__0_0.distcp").open("ab"):
        for name in others:
            host.write(name)
        host.passes(0.0, 6.0)
        assert host.listed().keys() == others


@pytest.mark.parametrize("by_the_job", [False, True])
def test_what_a_job_wrote_beside_a_file_of_its_checkpoint_that_is_cut_short_is_named(
    host: Host, *, by_the_job: bool
) -> None:
    cut_short(host.write("epoch_1/step_1.pt"))
    written_ns = JOB_BEGAN_NS + (10**9 if by_the_job else -(10**9))
    os.utime(host.write("epoch_1/step_2.pt"), ns=(written_ns, written_ns))
    host.passes(0.0, 6.0)
    done = host.sync.one_pass(at_the_end=True)
    assert host.listed() == {}
    assert done.waiting == ("epoch_1",)
    assert done.problems.keys() == {"epoch_1/step_1.pt"} | (
        {"epoch_1/step_2.pt"} if by_the_job else set()
    )


LEAVES_ONE_CUT_SHORT = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["HEADRACE_CHECKPOINT_DIR"], sys.argv[1])
folder.mkdir(exist_ok=True)
(folder / "3.pt").write_bytes(b"PK\\x03\\x04" + bytes(1000))
(folder / "4.pt").write_text("four")
"""


@pytest.mark.parametrize(("place", "code"), [(".", 0), ("exp1", 0), ("epoch_1", 1)])
def test_a_job_names_what_is_not_copied_and_fails_unless_a_kill_may_have_left_it(
    tmp_path: Path, place: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(LEAVES_ONE_CUT_SHORT)
    url = str(tmp_path / "url")
    flags = ["--name", "a", "--profile", "off", "--checkpoint-uri", url]
    ended = run_job(tmp_path, *flags, "train.py", place)
    assert ended.returncode == code, ended.stderr
    left, other = (Path(place, name).as_posix() for name in ("3.pt", "4.pt"))
    assert f"{left} its end is missing" in ended.stderr
    assert (f"{other} belongs to a checkpoint" in ended.stderr) == bool(code)
    assert RemoteCopy(url, print).newest().files.keys() == (set() if code else {other})


PARTS = [
    "model.zip.aa", "model.zip.001", "model.pt.00", "model.zip.z01", "model.zip.part1",
    "model.ckpt-aa", "model.safetensors.aa", "xaa", "model_part_00", "part1",
]  # fmt: skip
ARCHIVES = [
    "a.pt", "b.pth", "c.pth.tar", "d.bin", "e.ckpt", "f.npz", "g.zip", "H.PT", "checkpoint",
    "epoch_100",
]  # fmt: skip


def test_a_file_s_name_says_whether_it_should_have_an_archive_s_end(host: Host) -> None:
    for name in (*PARTS, *ARCHIVES):
        host.write(name, b"PK\x03\x04 and no end")
    host.passes(0.0, 2.0)
    assert host.listed().keys() == set(PARTS)
    problems = host.sync.one_pass(at_the_end=True).problems
    assert problems == dict.fromkeys(ARCHIVES, "its end is missing")


def test_an_archive_that_was_split_comes_back_whole(host: Host, tmp_path: Path) -> None:
    archive, there = tmp_path / "model.zip", tmp_path / "there"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("weights", os.urandom(20_000))
    subprocess.run(["split", "-b", "8000", archive, host.folder / "model.zip."], check=True)
    host.passes(0.0, 2.0)
    restore(host.remote, there, print)
    parts = sorted(there.iterdir())
    assert [part.name for part in parts] == [f"model.zip.a{letter}" for letter in "abc"]
    assert b"".join(part.read_bytes() for part in parts) == archive.read_bytes()


@pytest.mark.parametrize("name", [
    "last.th", "model.pt2", "model.chkpt", "model.pth.1", "model.best", "model_0.95", "epoch_00",
    "ckpt_000", "epoch.00", "weights", "x1", "part", "pytorch_model.bin", "part0.pt",
    "model_part_1.pth", "counterpart1", "resnet.epoch.0001", "model.step.000",
])  # fmt: skip
def test_whatever_an_archive_is_called_its_end_is_missed(host: Host, name: str) -> None:
    cut_short(host.folder / name)
    host.passes(8.0, 8.0)
    assert host.listed() == {}
