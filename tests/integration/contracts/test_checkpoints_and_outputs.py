"""Jobs whose checkpoints are kept at a URL and whose outputs are uploaded, on a real S3 server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.data.storage import Store, open_store
from headrace.jobs.sync.output_process import Lease
from headrace.platforms.sagemaker import make_checkpoint_path
from jobs import attempts_of, clean_environment, eventually, started
from jobs_here import run_job, run_verb
from machine import needs

COUNTS = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["HEADRACE_CHECKPOINT_DIR"])
done = sorted(folder.glob("*.pt"))
start = int(done[-1].stem) + 1 if done else 0
print("from", start, flush=True)
for step in range(start, start + 3):
    draft = folder / "draft"
    draft.write_text(f"state {step}")
    draft.rename(folder / f"{step}.pt")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
SAVES_WHEN_ASKED = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["HEADRACE_CHECKPOINT_DIR"])
def save(number, frame):
    (folder / "last.pt").write_text("saved in the grace")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("found", sorted(path.name for path in folder.iterdir()), flush=True)
pathlib.Path("ready").touch()
while not pathlib.Path("enough").exists():
    time.sleep(0.01)
"""
VERTEX = """
import os, pathlib
pathlib.Path(os.environ["AIP_MODEL_DIR"], "model.pth").write_text("weights")
pathlib.Path(os.environ["AIP_TENSORBOARD_LOG_DIR"], "events").write_text("log")
folder = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"])
print("found", sorted(path.name for path in folder.iterdir()))
(folder / "1.pt").write_text("state")
"""
LEAVES_A_WRITER = """
import os, pathlib, subprocess, sys
model = pathlib.Path(os.environ["AIP_MODEL_DIR"])
model.joinpath("model.pth").write_text("weights")
model.joinpath("versions", "1").mkdir(parents=True)
model.joinpath("versions", "1", "a").write_text("a")
model.joinpath("best").symlink_to("versions/1")
writes = "import sys, time; file = open(sys.argv[1], 'w'); print('x', flush=True); time.sleep(20)"
command = [sys.executable, "-c", writes, str(model / "late.pth")]
subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
"""
WAITS = """
import pathlib, time
pathlib.Path("ready").touch()
while not pathlib.Path("enough").exists():
    time.sleep(0.01)
"""
OTHER_LAUNCHER = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
found = sorted(path.name for path in folder.iterdir())
print("found", found, sorted(path.name for path in pathlib.Path("/opt/ml/checkpoints").iterdir()))
(folder / f"{len(found)}.pt").write_text("state")
"""
QUIET = ("--profile", "off")


@needs("mounts")
@pytest.mark.parametrize("below", ["", "/opt/ml/mine", "/headrace-test/deep"])
def test_checkpoints_at_a_path_of_the_scripts_own_come_back_there(
    tmp_path: Path, below: str
) -> None:
    place = below or str(tmp_path / "mine")
    (tmp_path / "train.py").write_text(OTHER_LAUNCHER)
    flags = ("--contract", "sagemaker", "--checkpoint-local-path", place, *QUIET)
    for name, found in (("a", []), ("b", ["0.pt"])):
        ended = run_job(
            tmp_path, *flags, "--name", name, "--checkpoint-uri", "kept", "train.py", place
        )
        assert ended.returncode == 0, ended.stderr
        assert f"found {found} {found}\n" in ended.stdout
    assert below or not any((tmp_path / "mine").iterdir())  # it is the job's alone


def test_a_path_for_checkpoints_that_would_hide_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mine").write_text("")
    for place in (tmp_path, tmp_path / "mine"):
        ended = run_job(tmp_path, "--contract", "sagemaker", "--checkpoint-local-path", str(place),
                    *QUIET, "train.py")  # fmt: skip
        assert ended.returncode == 2
        assert "there is something already, which the script would not see" in ended.stderr


def test_a_path_for_checkpoints_needs_a_view_of_files_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a process of this host may mount nothing"):
        make_checkpoint_path("/mine", tmp_path, can_bind_mount=False)


def test_a_run_goes_on_from_its_url_where_its_folder_is_lost(tmp_path: Path, s3_url: str) -> None:
    (tmp_path / "train.py").write_text(COUNTS)
    for name, code in (("a", 0), ("b", 3), ("c", 0)):
        ended = run_job(tmp_path, "--name", name, *QUIET, "--checkpoint-uri", s3_url, "train.py",
                    str(code))  # fmt: skip
        assert ended.returncode == code, ended.stderr
        assert ended.stdout == {"a": "from 0\n", "b": "from 3\n", "c": "from 6\n"}[name]
    assert "6 files of checkpoints" in ended.stderr
    assert "draft" not in " ".join(info.path for info in open_store(s3_url).list("files"))


def test_a_script_that_is_asked_to_stop_saves_and_that_is_copied(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(SAVES_WHEN_ASKED)
    flags = ["--name", "a", *QUIET, "--checkpoint-uri", s3_url]
    with started(tmp_path, *flags, "train.py") as job:
        eventually((tmp_path / "ready").exists, "the script runs")
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=100) == 0
    (tmp_path / "enough").touch()
    ended = run_job(tmp_path, "--name", "b", *flags[2:], "train.py")
    assert ended.stdout == "found ['last.pt']\n", ended.stderr


def test_ranks_under_torchrun_are_asked_to_stop_and_what_they_save_is_copied(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(SAVES_WHEN_ASKED)
    flags = [*QUIET, "--checkpoint-uri", s3_url]
    with started(tmp_path, "--name", "a", *flags, "--nproc-per-node", "1", "train.py") as job:
        eventually((tmp_path / "ready").exists, "the script runs")
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=100) == 128 + signal.SIGTERM
    (tmp_path / "enough").touch()
    ended = run_job(tmp_path, "--name", "b", *flags, "train.py")
    assert "found ['last.pt']\n" in ended.stdout, ended.stderr


def test_vertex_folders_are_uploaded_and_its_checkpoints_come_back(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(VERTEX)
    flags = ["--contract", "vertex", *QUIET, "--output-path", f"{s3_url}/out"]
    flags += ["--checkpoint-uri", f"{s3_url}/kept"]
    for name, files in (("a", []), ("b", ["1.pt"])):
        ended = run_job(tmp_path, "--name", name, *flags, "train.py")
        assert ended.stdout == f"found {files}\n", ended.stderr
    names = {info.path for info in open_store(f"{s3_url}/out").list()}
    assert names == {"model/model.pth", "logs/events", "checkpoints/1.pt"}
    assert not Path("/gcs").exists()  # where the script sees them


def test_an_output_that_is_still_written_at_the_end_fails_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAVES_A_WRITER)
    flags = ["--contract", "vertex", *QUIET, "--output-path", str(tmp_path / "out")]
    ended = run_job(tmp_path, "--name", "a", *flags, "train.py")
    assert ended.returncode == 1, ended.stderr
    assert "model/late.pth a process has it open for writing" in ended.stderr
    names = {info.path for info in open_store(str(tmp_path / "out")).list()}
    assert names == {"model/model.pth", "model/versions/1/a", "model/best/a"}
    assert attempts_of(tmp_path / "runs" / "a")[0]["exit_code"] == 1


def test_two_jobs_that_write_one_output_path_are_refused_at_the_start(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    flags = ["--contract", "sagemaker", *QUIET, "--output-path", s3_url, "train.py"]
    with started(tmp_path, "--name", "a", *flags) as job:
        eventually((tmp_path / "ready").exists, "the script runs")
        refused = run_job(tmp_path, "--name", "b", *flags)
        assert refused.returncode == 2
        assert "job a (process " in refused.stderr
        assert "Give this job a path of its own" in refused.stderr
        channel = run_job(tmp_path, "--name", "c", f"--channel=train={s3_url}/none", *flags)
        assert "Give this job a path of its own" in channel.stderr  # before what would be copied
        (tmp_path / "enough").touch()
        assert job.wait(timeout=100) == 0
    assert run_job(tmp_path, "--name", "b", *flags).returncode == 0


def test_a_lease_whose_process_has_ended_is_taken_over(s3_url: str) -> None:
    store = open_store(s3_url)
    subprocess.run(
        [sys.executable, "-c", TAKES, s3_url], env=clean_environment(), check=True, timeout=60
    )
    lease = Lease(store, "b")
    lease.take()
    with pytest.raises(UsageError, match="job b"):
        Lease(store, "c").take()
    lease.release()
    Lease(store, "c").take()


def test_a_lease_of_another_pid_namespace_is_not_taken_over(tmp_path: Path) -> None:
    # As of a container of this machine: its pid means nothing here.
    store = open_store(str(tmp_path))
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--pid", "--fork",
         sys.executable, "-c", TAKES, str(tmp_path)],
        env=clean_environment(), check=True, timeout=60,
    )  # fmt: skip
    (lease,) = store.list("headrace-lease")
    record = json.loads(bytes(store.get(lease.path)))
    record["pid"] = 2**22 + 1  # no process of this namespace has it
    store.put(lease.path, json.dumps(record).encode())
    with pytest.raises(UsageError, match="job a"):
        Lease(store, "b").take()


def test_a_lease_is_renewed_however_long_an_upload_takes(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    lease, lost = Lease(store, "a", lasts_s=0.5), threading.Event()
    lease.take()
    (info,) = store.list("headrace-lease")

    def lasts_until_s() -> float:
        return float(json.loads(bytes(store.get(info.path)))["until_s"])

    begun_s = lasts_until_s()
    with lease.renewed(lambda _: lost.set()):
        eventually(lambda: lasts_until_s() > begun_s + 1.0, "it lasts longer than at its start")
        with pytest.raises(UsageError, match="job a"):
            Lease(store, "b").take()
        store.put(f"{info.path[:-6]}{int(info.path[-6:]) + 1:06}", b"{}")  # another has taken it
        assert lost.wait(60)


def _of_another_machine(store: Store, path: str, until_s: float) -> None:
    record = json.loads(bytes(store.get(path)))
    record |= {"host": "other", "boot": "another", "until_s": until_s}
    store.put(path, json.dumps(record).encode())


@pytest.mark.parametrize("ahead_s", [-10_000.0, 10_000.0])
def test_a_lease_is_live_while_it_is_renewed_whatever_its_clock_says(
    tmp_path: Path, ahead_s: float
) -> None:
    store = open_store(str(tmp_path))
    Lease(store, "a").take()
    (info,) = store.list("headrace-lease")
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(0.05):
            _of_another_machine(store, info.path, time.time() + ahead_s)

    _of_another_machine(store, info.path, time.time() + ahead_s)
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(UsageError, match="job a"):
            Lease(store, "b", lasts_s=20.0).take()
    finally:
        is_over.set()
        thread.join()
    Lease(store, "b", lasts_s=0.5).take()


@pytest.mark.parametrize(
    "record", ["[]", "5", '{"pid": null}', '{"owner": "a", "pid": "x"}', "[" * 100_000]
)
def test_what_is_no_lease_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr("headrace.jobs.sync.output_process._UNREADABLE_S", 0.1)
    store = open_store(str(tmp_path))
    store.put("headrace-lease/000001", record.encode())
    Lease(store, "b").take()


@needs("disks")
def test_a_process_is_there_also_where_proc_does_not_show_it() -> None:
    looks = (
        "import os, pathlib, sys; from headrace.core.process.process_kill import exists; "
        "print(exists(int(sys.argv[1])), pathlib.Path('/proc', sys.argv[1]).exists(), "
        "exists(2**22 + 1))"
    )
    hidden = (
        "mount -t proc -o hidepid=invisible proc /proc && "
        'exec setpriv --reuid 12345 --regid 12345 --clear-groups "$@"'
    )
    seen = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", looks,
         str(os.getpid())],
        env=clean_environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert seen.stdout.split() == ["True", "False", "False"]


def test_a_lease_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    other = Lease(store, "other")
    other.take()
    (lease,) = store.list("headrace-lease")
    record = bytes(store.get(lease.path))
    store.put(lease.path, b"")  # as where a disk has no hard links
    written = threading.Timer(0.1, lambda: store.put(lease.path, record))
    written.start()
    with pytest.raises(UsageError, match="job other"):
        Lease(store, "b").take()
    written.join()


TAKES = """
import os, sys
from headrace.data.storage import declare_leaf, open_store
from headrace.jobs.sync.output_process import Lease
declare_leaf()
Lease(open_store(sys.argv[1]), "a").take()
os._exit(0)
"""


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path, s3_url: str) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "file").touch()
    for flags, message in (
        (["--checkpoint-uri", "ftp://b/x"], "no store is known for ftp://"),
        (["--checkpoint-uri", "memory://x"], "memory:// ends with the process"),
        (["--checkpoint-uri", "https://host/x"], "a web server tells neither"),
        (["--checkpoint-uri", ""], "--checkpoint-uri is empty"),
        (["--checkpoint-uri", "r/checkpoints/kept"], "kept inside of themselves"),
        (["--checkpoint-uri", "r"], "kept inside of themselves"),
        (["--checkpoint-uri", "file/below"], "cannot be written to"),
        (["--checkpoint-uri", f"s3://no-such-{Path(s3_url).name}/x"], "cannot be written to"),
        (["--output-path", s3_url], "no contract tells the script"),
    ):  # fmt: skip
        ended = run_job(tmp_path, "--run-dir", "r", *QUIET, *flags, "train.py")
        assert (ended.returncode, ended.stdout) == (2, ""), (flags, ended.stderr)
        assert message in ended.stderr, (flags, ended.stderr)


def test_resume_starts_the_last_command_again_from_where_it_was_typed(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(COUNTS)
    (tmp_path / "elsewhere").mkdir()
    run_job(tmp_path, "--name", "a", *QUIET, "--checkpoint-uri", s3_url, "train.py")
    runs = str(tmp_path / "runs")
    again = run_verb(tmp_path / "elsewhere", "resume", "a", "--runs-dir", runs)
    assert (again.returncode, again.stdout) == (0, "from 3\n"), again.stderr
    first, second = attempts_of(tmp_path / "runs" / "a")
    assert first["command"] == second["command"]
    assert second["folder"] == str(tmp_path)


def test_resume_refuses_a_command_whose_secret_was_not_written_down(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    run_job(tmp_path, "--name", "a", *QUIET, "train.py", "--api-key", "s3cr3t")
    run_job(tmp_path, "--name", "b", *QUIET, "train.py", "https://host/x?signature=s3cr3t")
    for name in ("a", "b"):
        refused = run_verb(tmp_path, "resume", name)
        assert refused.returncode == 2
        assert "held a secret, which was not written down" in refused.stderr
        assert "s3cr3t" not in refused.stderr
    missing = run_verb(tmp_path, "resume", "aa")
    assert "Did you mean a?" in missing.stderr
