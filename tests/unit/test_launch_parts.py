"""The failure that ended a job, and logs shown as they grow."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.process.parent_death import parent_bound_command
from headrace.core.process.process_groups import RankProcessGroups
from headrace.core.process.sidecar import Sidecar
from headrace.core.process.supervision import exit_code_of
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.cli_args import check_script, direct_job
from headrace.jobs.environment.script_environment import (
    ScriptEnvironment,
    join_environments,
    with_script_options,
)
from headrace.jobs.failure import (
    ClockOffset,
    RankFailure,
    describe_exit,
    failure_message,
    first_failure,
    last_traceback,
)
from headrace.jobs.host_run import HostRun
from headrace.jobs.output import LogFollower, Tee
from headrace.jobs.spec import ContractOptions, Script, ScriptOptions, SyncOptions
from headrace.jobs.sync.host_sync import HostSync, OutputUpload
from headrace.jobs.torchrun_process import TorchrunProcess, looks_like_torchruns
from jobs import DEADLINE_S, alive, eventually


def failure(rank: int, returncode: int, last_words_s: float, seen_s: int = 100) -> RankFailure:
    return RankFailure(rank=rank, returncode=returncode, seen_s=seen_s, last_words_s=last_words_s)


def test_the_first_failure_is_the_cause_not_its_followers():
    cause, follower = failure(1, 3, 50.0), failure(0, 1, 50.2)
    assert first_failure([follower, cause]) is cause


def test_a_rank_that_torchrun_stopped_is_no_cause():
    stopped, cause = failure(0, -signal.SIGTERM, 10.0), failure(1, 3, 50.0)
    assert first_failure([stopped, cause]) is cause
    assert first_failure([stopped]) is stopped


def test_a_rank_that_torchrun_killed_after_its_grace_is_no_cause():
    stubborn, cause = failure(0, -signal.SIGKILL, 10.0, seen_s=130), failure(1, 3, 50.0)
    assert first_failure([stubborn, cause]) is cause


@pytest.mark.parametrize("skew_s", [-3600.0, -1.3, -0.4, 0.0, 0.4, 1.3, 3600.0])
@pytest.mark.parametrize("cause_s", [100.01, 100.5, 100.99])
@pytest.mark.parametrize("later_s", [0.2, 1.5])
def test_the_cause_is_found_among_hosts_whose_clocks_differ(
    skew_s: float, cause_s: float, later_s: float
):
    def of_host(rank: int, failed_s: float, skew_s: float, delays_s: list[float]) -> RankFailure:
        clock = ClockOffset()
        for number, delay_s in enumerate(delays_s):
            clock.add(failed_s + number + skew_s, failed_s + number + delay_s)
        own_s = failed_s + skew_s
        return clock.to_local(failure(rank, 1, own_s, seen_s=int(own_s + 0.1)))

    # News of the cause's host lay waiting longer, and its end came last: it had ranks to stop.
    cause = of_host(1, cause_s, skew_s, [0.8, 0.01, 2.0])
    follower = of_host(0, cause_s + later_s, 0.0, [0.02])
    assert first_failure([follower, cause]) is cause


@pytest.mark.parametrize(
    ("returncode", "words", "code"),
    [
        (3, "exit code 3", 3),
        (-9, "killed by SIGKILL, often for want of memory (exit code 137)", 137),
        (-11, "killed by SIGSEGV (exit code 139)", 139),
    ],
)
def test_an_end_in_words_and_as_a_shell_reports_it(returncode, words, code):
    assert describe_exit(returncode) == words
    assert exit_code_of(returncode) == code


def test_what_we_killed_ourselves_is_not_said_to_have_lacked_memory():
    ended = describe_exit(-9, had_to_stop=True)
    assert ended == "killed by SIGKILL, as it had not stopped when asked to (exit code 137)"


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])  # as torch marks those of its ranks
def test_the_last_traceback_holds_its_whole_chain(tmp_path: Path, prefix: str):
    script = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError(7) from error"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n  an older one\nOldError\nepoch 2\n")
    with log.open("a") as file:
        file.writelines(prefix + line for line in ended.stderr.splitlines(keepends=True))
    found = last_traceback(log)
    assert found.startswith("Traceback")
    assert "ZeroDivisionError" in found
    assert found.endswith("KeyError: 7")
    assert "OldError" not in found


def test_without_a_traceback_the_last_lines_are_reported(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_traceback(log).splitlines() == [f"line {number}" for number in range(90, 100)]
    assert last_traceback(tmp_path / "none") == ""


def test_a_long_traceback_is_cut_in_its_middle(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        "Traceback (most recent call last):\n" + "".join(f"  {n}\n" for n in range(500)) + "End\n"
    )
    lines = last_traceback(log).splitlines()
    assert len(lines) == 41
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "End"


CRASH = """
import ctypes, threading

def decode():
    ctypes.string_at(0)

threading.Thread(target=threading.Event().wait, daemon=True).start()
print("terminate called", file=__import__("sys").stderr, flush=True)
decode()
"""


def test_a_crash_in_native_code_is_reported_with_the_stack_of_its_thread(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(CRASH)
    crashed = subprocess.run(
        [sys.executable, "-X", "faulthandler", script], capture_output=True, check=False
    )
    log = tmp_path / "log"
    handled = b"Traceback (most recent call last):\nOldError: handled\n"
    log.write_bytes(handled + b"epoch 2\n" * 9 + crashed.stderr)
    found = last_traceback(log).splitlines()
    assert found[:3] == ["epoch 2", "epoch 2", "terminate called"]
    assert found[3] == "Fatal Python error: Segmentation fault"
    assert found[4].startswith("Current thread ")
    assert f'  File "{script}", line 5 in decode' in found
    assert f'  File "{script}", line 9 in <module>' in found[-1:]  # no other thread, no list

    log.write_bytes(crashed.stderr + b"restarted\n" + handled)
    assert last_traceback(log).endswith("OldError: handled")


FULL_DISK = """
import sys
from pathlib import Path
from headrace.jobs.failure import RankFailure, failure_message
log = Path(sys.argv[1]) / "rank-0.stderr"
fill = log.with_name("fill").open("wb", buffering=0)
failure = RankFailure(rank=0, returncode=1, seen_s=0)
log.touch()
print("full" in failure_message(failure, total=1, log=log))
try:
    while True:
        fill.write(bytes(4096))
except OSError:
    print("full" in failure_message(failure, total=1, log=log))
"""


def test_a_rank_whose_log_no_longer_fits_its_disk_is_said_to_have_failed_so(tmp_path: Path):
    mounted = 'mount -t tmpfs -o size=512k none "$0" && exec "$@"'
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, str(tmp_path),
         sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def test_the_failure_message_names_rank_code_and_log(tmp_path: Path):
    log = tmp_path / "rank-1.stderr"
    log.write_text("Traceback (most recent call last):\nValueError: boo\n")
    message = failure_message(failure(1, 3, 0.0), total=2, log=log)
    assert message.splitlines()[0] == "headrace: rank 1 failed first: exit code 3"
    assert "ValueError: boo" in message
    assert str(log) in message.splitlines()[-1]


def test_lines_of_two_files_never_mix_and_say_whose_they_are(tmp_path: Path):
    shown = io.BytesIO()
    follower = LogFollower()
    for rank, text in enumerate([b"a\nb\rc\r\nhalf", b"x\n"]):
        (tmp_path / str(rank)).write_bytes(text)
        follower.follow(tmp_path / str(rank), f"[{rank}] ", shown)
    follower.close()
    assert sorted(shown.getvalue().splitlines(keepends=True)) == sorted(
        [b"[0] a\n", b"[0] b\r", b"[0] c\r\n", b"[0] half\n", b"[1] x\n"]
    )


def test_without_a_prefix_bytes_pass_as_they_are(tmp_path: Path):
    shown = io.BytesIO()
    follower = LogFollower()
    (tmp_path / "log").write_bytes(b"10%\r20%\rno end")
    follower.follow(tmp_path / "log", "", shown)
    follower.follow(tmp_path / "never made", "", shown)
    follower.close()
    assert shown.getvalue() == b"10%\r20%\rno end"


def test_a_tee_shows_and_keeps_the_same_bytes_and_outlives_its_terminal(tmp_path: Path):
    shown = io.BytesIO()
    command = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 999)"]
    for terminal in (shown, _closed()):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        tee = Tee(child.stdout, terminal, tmp_path / "log")
        child.wait()
        tee.close(timeout_s=30)
        assert (tmp_path / "log").read_bytes() == bytes(range(256)) * 999
    assert shown.getvalue() == bytes(range(256)) * 999


class _Full:
    """A terminal that is a file on a full disk."""

    def write(self, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, f"no room for {len(data)} bytes")

    def flush(self) -> None:
        pass


def test_a_full_disk_behind_the_terminal_costs_what_is_shown_alone(tmp_path: Path):
    command = [sys.executable, "-c", "print('x' * 200_000)"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    tee = Tee(child.stdout, _Full(), tmp_path / "log")
    assert child.wait() == 0
    tee.close(timeout_s=30)
    assert (tmp_path / "log").stat().st_size == 200_001
    follower = LogFollower()
    follower.follow(tmp_path / "log", "[0] ", _Full())
    follower.close()


def test_the_log_is_whole_while_the_terminal_stands_still(tmp_path: Path):
    reading, writing = os.pipe()
    command = [sys.executable, "-c", "print('x' * 200_000)"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with os.fdopen(writing, "wb", buffering=0) as still, os.fdopen(reading, "rb") as pager:
        tee = Tee(child.stdout, still, tmp_path / "log")
        assert child.wait() == 0
        eventually(lambda: (tmp_path / "log").stat().st_size == 200_001, "all is logged")
        shown: list[bytes] = []
        reads = threading.Thread(target=lambda: shown.append(pager.read(200_001)))
        reads.start()
        tee.close()
        reads.join()
    assert shown == [b"x" * 200_000 + b"\n"]


class _Slow:
    """A terminal that shows less than is written."""

    def write(self, data: memoryview) -> int:
        threading.Event().wait(0.01)
        return len(data)


def test_what_a_script_leaves_behind_may_write_for_ever():
    command = ["sh", "-c", "yes & exit 3"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    tee = Tee(child.stdout, _Slow(), Path("/dev/null"))  # without an end, it would fill a disk
    try:
        assert child.wait() == 3
        tee.close(timeout_s=0.5)
    finally:
        os.killpg(child.pid, signal.SIGKILL)


def _closed() -> io.BytesIO:
    stream = io.BytesIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("argv", "module", "script", "arguments"),
    [
        (["t.py"], False, "t.py", ()),
        (["t.py", "--name", "x"], False, "t.py", ("--name", "x")),
        (["--name=a", "t.py", "--nproc-per-node", "2"], False, "t.py", ("--nproc-per-node", "2")),
        (["--run_dir", "d", "-m", "pkg.train", "-v"], True, "pkg.train", ("-v",)),
        (["--", "t.py"], False, "t.py", ()),
    ],
)
def test_without_torchruns_flags_the_script_runs_directly(argv, module, script, arguments):
    job = direct_job(argv)
    assert job is not None
    assert job.script == Script(path=script, is_module=module, arguments=arguments)


@pytest.mark.parametrize(
    "argv", [["--nproc-per-node", "2", "t.py"], ["--name", "a", "--standalone", "t.py"], ["-r3"]]
)
def test_with_torchruns_flags_torchrun_runs_it(argv):
    assert direct_job(argv) is None


def test_with_torchruns_variables_torchrun_runs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    assert direct_job(["t.py"]) is None


@pytest.mark.parametrize("argv", [[], ["--name"], ["--name", "x"]])
def test_a_command_line_without_a_script_is_wrong_use(argv):
    with pytest.raises(UsageError, match=r"script|value"):
        direct_job(argv)


def test_a_script_that_cannot_run_is_reported_with_the_remedy(tmp_path: Path):
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=r"no script .*trian\.py.* Did you mean .*train\.py\?"):
        check_script(str(tmp_path / "trian.py"))
    with pytest.raises(UsageError, match="folder without a __main__"):
        check_script(str(tmp_path))
    check_script(str(tmp_path / "train.py"))


def test_the_rank_wrapper_becomes_the_command_and_passes_its_code_on(tmp_path: Path):
    pid_file = tmp_path / "pid"
    script = (
        f"import os, pathlib, sys; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))"
    )
    child = subprocess.Popen(
        parent_bound_command(sys.executable, [sys.executable, "-c", f"{script}; sys.exit(5)"])
    )
    assert child.wait() == 5
    assert int(pid_file.read_text()) == child.pid


def test_what_has_a_rank_s_number_now_is_none_of_its_leftovers():
    leftovers = RankProcessGroups()
    command = parent_bound_command(
        sys.executable, ["sh", "-c", "read go"], pid_pipes=leftovers.pid_pipes
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as living:
        eventually(lambda: Path(f"/proc/{living.pid}/comm").read_text() == "sh\n", "the command")
        leftovers.end()
        leftovers.release()
        living.terminate()
    assert living.returncode == -signal.SIGTERM


def test_groups_that_were_ended_are_not_looked_for_again():
    guard = Sidecar("headrace.core.process.rank_group_guard", {})
    members = []
    for _ in range(2):  # as what a rank leaves, or a daemon whose first process had its number
        with subprocess.Popen(
            ["sh", "-c", "sleep 3600 >&2 & echo $!"], stdout=subprocess.PIPE, start_new_session=True
        ) as leader:
            assert leader.stdout is not None
            members.append(int(leader.stdout.readline()))
        guard.send({"pid": leader.pid})
    guard.send({"ended": [os.getpgid(members[0])]})
    try:
        assert guard.end(patience_s=DEADLINE_S) == 0
        assert [alive(member) for member in members] == [True, False]
    finally:
        os.kill(members[0], signal.SIGKILL)


def test_the_rank_wrapper_says_what_cannot_be_started():
    ended = subprocess.run(
        parent_bound_command(sys.executable, ["/no/such/program"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 127
    assert "/no/such/program cannot be started: No such file" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "early"),
    [
        (["run", "--nproc-per-node", "2", "t.py"], True),
        (["run", "--name", "a", "--standalone", "-m", "train"], True),
        (["run", "--engine=ray", "t.py"], True),
        (["run", "t.py", "--nproc-per-node", "2"], False),  # the script's own
        (["run", "--name", "a", "t.py"], False),
        (["run", "--nproc-per-node", "2", "--dry-run", "t.py"], False),
        (["doctor", "--group"], False),
        ([], False),
    ],
)
def test_torchruns_process_is_started_early_where_flags_ask_for_it(
    arguments: list[str], early: bool
):
    assert looks_like_torchruns(arguments) == early


def test_a_process_that_was_started_early_and_is_not_needed_ends():
    process = TorchrunProcess()
    process.discard()
    assert process.child.returncode is not None
    # Without a request it ends by itself, as where the parent is killed before it sends one.
    unasked = TorchrunProcess()
    os.close(unasked._request_fd)
    assert unasked.child.wait(60) == 0


def test_a_log_that_cannot_be_read_ends_neither_the_others_nor_the_job(tmp_path: Path):
    shown = io.BytesIO()
    follower = LogFollower()
    (tmp_path / "folder").mkdir()
    follower.follow(tmp_path / "folder", "", shown)
    (tmp_path / "log").write_bytes(b"a line\n")
    follower.follow(tmp_path / "log", "", shown)
    follower.close()
    assert shown.getvalue() == b"a line\n"


class LongUpload(HostSync):
    """A sync of checkpoints whose last upload takes until it is `done`."""

    def __init__(self, run: Path) -> None:
        super().__init__(SyncOptions(), ScriptEnvironment(), run)
        self.begun, self.done, self.calls = threading.Event(), threading.Event(), 0

    def finish(self, *, clean: bool) -> bool:
        self.calls += 1
        self.begun.set()
        assert self.done.wait(DEADLINE_S)
        return clean


def test_both_threads_that_finish_uploads_wait_for_the_first(tmp_path: Path):
    """After a stop signal the one that ends first ends the process."""
    sync = LongUpload(tmp_path)
    run = HostRun(
        build_environment=ScriptEnvironment, make_sync=lambda _: sync,
        output=OutputUpload(SyncOptions(), ContractOptions(), tmp_path),
    )  # fmt: skip
    run.prepare()
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(run.finish_uploads(clean=False)))
        for _ in range(2)
    ]
    threads[0].start()
    assert sync.begun.wait(DEADLINE_S)
    threads[1].start()
    threads[1].join(0.1)
    assert not found
    sync.done.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (found, sync.calls) == ([False, False], 1)


def test_a_pythonpath_that_the_user_gives_goes_before_what_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/old:lib")
    options = ScriptOptions(environment={"PYTHONPATH": "/mine:/old"})
    plain = with_script_options(ScriptEnvironment(), options, tmp_path).environment
    expected = f"/mine:/old:{Path.cwd()}/lib"
    assert plain["PYTHONPATH"] == expected
    recorded = {"PYTHONPATH": env.pythonpath_with(SITECUSTOMIZE_DIR)}
    joined = join_environments(plain, recorded)
    assert joined["PYTHONPATH"] == f"{SITECUSTOMIZE_DIR}:{expected}"
    of_contract = ScriptEnvironment(environment=recorded)  # as of SageMaker's, for smdistributed
    assert with_script_options(of_contract, options, tmp_path).environment == joined


URI, NAME, NUMBER = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {URI: "sqlite:///runs.db", NAME: "train", NUMBER: None}),
        ({URI: "http://a"}, {URI: "http://a"}),
        ({URI: "http://a", NAME: "mine"}, {URI: "http://a", NAME: "mine", NUMBER: None}),
        ({NAME: "mine"}, {URI: "sqlite:///runs.db", NAME: "mine", NUMBER: None}),
        ({NUMBER: "7"}, {URI: "sqlite:///runs.db", NAME: None, NUMBER: "7"}),
        ({URI: ""}, {URI: "sqlite:///runs.db", NAME: "train", NUMBER: None}),
    ],
)
def test_variables_of_mlflow_s_that_the_user_gives_are_the_script_s(
    given: dict[str, str], expected: dict[str, str | None]
) -> None:
    options = ScriptOptions(environment=given)
    script = with_script_options(ScriptEnvironment(), options, Path("none")).environment
    recorded = {URI: "sqlite:///runs.db", NAME: "train", NUMBER: None, "HEADRACE_SPOOL": "spool"}
    joined = join_environments(script, recorded)
    assert joined.pop("HEADRACE_SPOOL") == "spool"
    joined.pop("PYTHONPATH", None)  # what the tests themselves have
    assert joined == expected
