"""What installs a job's requirements on a host: real pip, environments of its own, no network."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobs import DEADLINE_S, alive, clean_environment, descendants, eventually, pids_in
from machine import skip_without
from pip_environments import make_environment, make_wheel, packages_of

NO_OTHER_INDEX = {"PIP_CONFIG_FILE": os.devnull}


@dataclass
class Host:
    """A folder with a requirements.txt, and an interpreter of its own."""

    folder: Path
    python: Path

    def require(self, *lines: str) -> None:
        offline = "--no-index\n--find-links wheels\n"
        (self.folder / "requirements.txt").write_text(offline + "".join(f"{x}\n" for x in lines))

    @contextmanager
    def started(
        self,
        *command: str,
        job: str = "a",
        name: str = "host-0",
        longest_s: float = 60,
        named: str = "yes",
        **variables: str,
    ) -> Iterator[tuple[subprocess.Popen[str], Any]]:
        """Start what installs; gives it, and the lines of JSON that it announces."""
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [str(self.python), "-P", "-m", "headrace.cluster.requirements_installer", "--parent",
             str(os.getpid()), "--announce", str(writing), "--job", job, "--file",
             "requirements.txt", "--named", named, "--logs", "logs", "--name", name,
             "--longest-s", str(longest_s),
             *(["--", *command] if command else [])],
            cwd=self.folder, env=clean_environment(**NO_OTHER_INDEX, **variables),
            pass_fds=[writing], text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as lines:
            try:
                yield process, map(json.loads, lines)
            finally:
                process.kill()
                process.communicate()

    def install(self, *command: str, **options: Any) -> tuple[int, dict[str, Any], str]:
        """Return how it ended, what it announced last, and what the command printed."""
        with self.started(*command, **options) as (process, lines):
            stdout, _ = process.communicate(timeout=DEADLINE_S)
            return process.returncode, list(lines)[-1], stdout


@pytest.fixture
def host(tmp_path: Path) -> Host:
    folder = tmp_path / "job"
    folder.mkdir()
    return Host(folder, make_environment(tmp_path / "environment"))


@contextmanager
def silent_index() -> Iterator[str]:
    """A package index that takes questions and answers none; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


class _Closed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def closed_server() -> Iterator[str]:
    """An HTTP server that lets nobody in; gives its HOST:PORT."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Closed) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_what_stands_beside_the_script_is_installed_once_and_then_the_command_runs(host: Host):
    make_wheel(host.folder / "wheels", "tinyhr", "1.0", ["smallhr>=1"])
    make_wheel(host.folder / "wheels", "smallhr", "1.1")
    make_wheel(host.folder / "elsewhere", "vendoredhr", "3")
    (host.folder / "more.txt").write_text("./elsewhere/vendoredhr-3-py3-none-any.whl\n")
    (host.folder / "pinned.txt").write_text("smallhr<2\n")
    host.require("tinyhr", "-r more.txt", "-c pinned.txt")
    (host.folder / "json.py").write_text("raise SystemExit('the script's own, not pip's')")
    installed = ["smallhr==1.1", "tinyhr==1.0", "vendoredhr==3"]
    command = [str(host.python), "-c", "import tinyhr; print(tinyhr.VERSION)"]
    assert host.install(*command) == (0, {"installed": installed, "by_another": False}, "1.0\n")
    assert packages_of(host.python) == {"smallhr", "tinyhr", "vendoredhr"}
    assert "Successfully installed" in (host.folder / "logs/requirements-host-0.log").read_text()
    # Another host of the job with that environment asks no pip at all; another job's finds all.
    assert host.install(name="host-1") == (0, {"installed": installed, "by_another": True}, "")
    assert not (host.folder / "logs/requirements-host-1.log").exists()
    assert host.install(job="b") == (0, {"installed": [], "by_another": False}, "")


def test_hosts_that_share_an_environment_take_turns(host: Host):
    make_wheel(host.folder / "wheels", "tinyhr", "1.0")
    host.require("tinyhr")
    with host.started(name="host-0") as one, host.started(name="host-1") as two:
        result = [list(lines)[-1] for _, lines in (one, two)]
        assert [process.wait(DEADLINE_S) for process, _ in (one, two)] == [0, 0]
    assert sorted(each["by_another"] for each in result) == [False, True]
    assert {str(each["installed"]) for each in result} == {"['tinyhr==1.0']"}


@pytest.mark.parametrize(
    ("lines", "pip_text", "advised"),
    [
        (["nosuchhr"], "No matching distribution found for nosuchhr", "Check the name"),
        (["torch==9.9"], "The user requested torch==9.9", "It asks for another torch than"),
        (["oldhr"], "oldhr 1.0 depends on torch<2", "It asks for another torch than"),
        (["breakshr"], "breakshr 1.0 depends on numpy<2", "what torch, Ray and Headrace need"),
        (["packshr"], "packshr 1.0 depends on msgpack<1", "what torch, Ray and Headrace need"),
        (["oldhr", "-r no.txt"], "no.txt", "not in .gitignore"),
    ],
)
def test_what_cannot_be_installed_changes_nothing_and_is_reported(
    lines: list[str], pip_text: str, advised: str, host: Host
):
    wheels = host.folder / "wheels"
    make_wheel(wheels, "torch", "9.9")
    make_wheel(wheels, "numpy", "1.9")
    make_wheel(wheels, "oldhr", "1.0", ["torch<2"])
    make_wheel(wheels, "breakshr", "1.0", ["numpy<2"])
    make_wheel(wheels, "packshr", "1.0", ["msgpack<1"])  # Ray's own is newer
    make_wheel(wheels, "msgpack", "0.6")
    host.require(*lines)
    code, result, output = host.install(str(host.python), "-c", "print('has run')")
    assert (code, output) == (1, "")
    assert f"pip of {host.python} ended with 1. Its last lines:\n    " in result["not_installed"]
    assert pip_text in result["not_installed"]
    assert advised in result["not_installed"]
    assert packages_of(host.python) == set()


def test_what_was_there_and_is_broken_by_it_is_reported(host: Host):
    make_wheel(host.folder / "wheels", "washr", "1.0", ["smallhr<2"])
    make_wheel(host.folder / "wheels", "smallhr", "1.0")
    make_wheel(host.folder / "wheels", "smallhr", "2.0")
    host.require("washr")
    assert host.install()[0] == 0
    host.require("smallhr==2.0")
    code, result, _ = host.install(job="b")
    assert (code, result["installed"]) == (0, ["smallhr==2.0"])
    (broken,) = result["conflicts"]
    assert broken.startswith("washr 1.0 requires smallhr<2, but you have smallhr 2.0")


def test_a_token_in_a_url_is_in_no_log_and_no_message(host: Host):
    skip_without("git")
    with closed_server() as place:
        host.require(f"tinyhr @ git+http://s3cret@{place}/tinyhr.git")
        code, result, _ = host.install(GIT_TERMINAL_PROMPT="0")
    log = (host.folder / "logs/requirements-host-0.log").read_text()
    assert code == 1
    assert f"fatal: could not read Password for 'http://{place}'" in log
    assert "s3cret" not in log + result["not_installed"]


KEY = "5f3a9c0e7b2d4f6a8c1e0d9b7a5f3c2e"
FILE = "tinyhr-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "lines",
    [
        [f"tinyhr @ http://{{place}}/{FILE}?X-Amz-Credential=a%2Fb&X-Amz-Signature={KEY}"],
        [f"http://{{place}}/{FILE}?sv=2024&sig={KEY}#egg=tinyhr"],
        [f"tinyhr @ http://me:{KEY}@{{place}}/{FILE}"],
        [f"--index-url http://{{place}}/{KEY}/org/repo/python/simple/", "tinyhr"],
        [f"--index-url http://{{place}}/simple?token={KEY}", "tinyhr"],
        ["--no-index", f"--find-links http://{{place}}/x.html?X-Amz-Signature={KEY}", "tinyhr"],
    ],
    ids=["presigned", "presigned alone", "user", "index path", "index query", "links"],
)
def test_a_secret_in_any_part_of_a_url_is_in_no_log_and_no_message(lines: list[str], host: Host):
    with closed_server() as place:
        text = "\n".join(lines).format(place=place)
        (host.folder / "requirements.txt").write_text(f"{text}\n")
        code, result, _ = host.install()
    log = (host.folder / "logs/requirements-host-0.log").read_text()
    assert code == 1
    assert f"http://{place}/" in log
    assert KEY not in log + json.dumps(result)


def test_a_file_that_was_found_needs_no_pip_and_one_that_was_named_does(host: Host):
    (own,) = host.python.parents[1].glob("lib/python*/site-packages")
    (own / "no_pip.pth").write_text("import sys; sys.modules['pip'] = None\n")
    host.require("numpy")
    command = [str(host.python), "-c", "print('has run')"]
    code, result, stdout = host.install(*command, named="no")
    assert (code, stdout) == (0, "has run\n")
    assert f"the environment of {host.python} has no pip" in result["left_out"]
    code, result, stdout = host.install(*command)
    assert (code, stdout) == (1, "")
    assert "That environment has no pip. Run `python -m ensurepip`" in result["not_installed"]


def test_what_another_image_with_that_home_has_installed_is_asked_for_again(host: Host):
    make_wheel(host.folder / "wheels", "tinyhr", "1.0")
    host.require("tinyhr")
    assert host.install()[1]["installed"] == ["tinyhr==1.0"]
    (note,) = host.python.parents[1].glob("lib/python*/site-packages/.headrace-requirements")
    noted = json.loads(note.read_text())
    note.write_text(json.dumps(noted | {"image": [*noted["image"][:-1], 1]}))
    assert host.install() == (0, {"installed": [], "by_another": False}, "")


def test_a_file_that_did_not_come_along_is_reported(host: Host):
    code, result, _ = host.install()
    assert code == 1
    assert "requirements.txt is not among what came along" in result["not_installed"]


def test_an_index_that_does_not_answer_is_given_up_at_the_deadline(host: Host):
    with silent_index() as url:
        (host.folder / "requirements.txt").write_text(f"--index-url {url}\nnosuchhr\n")
        code, result, _ = host.install(longest_s=4)
    assert code == 1
    assert result["not_installed"].startswith("It has taken longer than 4 s. pip's last lines:\n")
    assert f"Looking in indexes: {url}" in result["not_installed"]


BUILDS_LONG = """
import os, pathlib, signal
if os.fork() == 0:
    os.setpgid(0, 0)  # as ninja does with compilers
    pathlib.Path(os.environ["COMPILER"]).write_text(f"{os.getpid()}\\n")
    signal.pause()
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_pip_and_what_it_builds_by(number: signal.Signals, host: Host):
    (host.folder / "slowhr").mkdir()
    (host.folder / "slowhr" / "slow.py").write_text(BUILDS_LONG)
    (host.folder / "slowhr" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
    )
    host.require("./slowhr")
    compiler = host.folder / "pid-compiler"
    with host.started(COMPILER=str(compiler)) as (process, _):
        below = pids_in(host.folder, 1)
        below += descendants(process.pid)
        assert len(below) > 3
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == (143 if number == signal.SIGTERM else -number)
        eventually(lambda: not any(map(alive, below)), "the end of pip")


def test_a_wait_for_others_that_takes_too_long_is_reported_as_one(host: Host):
    with silent_index() as url:
        (host.folder / "requirements.txt").write_text(f"--index-url {url}\nnosuchhr\n")
        with host.started() as (_, lines):
            assert list(next(lines)) == ["installing"]
            code, result, _ = host.install(name="host-1", longest_s=1)
    assert code == 1
    assert result["not_installed"].startswith("Others have been installing into that environment")
