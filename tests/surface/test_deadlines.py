"""Every wait has a deadline: calls that may wait for ever are listed, each with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
WITHOUT_ARGUMENTS = {
    "wait", "join", "result", "acquire", "communicate", "select", "receive", "epoll", "exception",
}  # fmt: skip
"""Methods that wait for ever where they get no argument: of processes, threads, locks, futures."""
OF_QUEUES = {"get", "put"}
OF_SOCKETS = {
    "accept", "recv", "recv_into", "recvfrom", "recvmsg", "recv_bytes", "sendall", "getresponse",
}  # fmt: skip
SYSTEM_WAITS = {"sigwait", "sigwaitinfo", "pause", "wait3", "wait4", "barrier", "monitored_barrier"}
OF_SUBPROCESS = {"run", "call", "check_call", "check_output", "getoutput"}
CONNECTIONS = {"urlopen", "create_connection", "HTTPConnection", "HTTPSConnection"}
REASONS = {
    "A user's script, or a job in another terminal, runs as long as it runs.": """
        cluster/agent.py process.wait
        jobs/estimator.py run.wait
        jobs/run_handle.py self.wait
        jobs/tune.py subprocess.run
        jobs/vertex_sdk/vertex_job.py run.wait
    """,
    "A thread or process of ours that serves until its parent, or what it serves, has ended.": """
        cluster/join_connections.py self._listener.accept
        core/process/sidecar.py self._current.wait
        core/process/sidecar.py self.wait
        data/channels/mount/mount_program.py signal.sigwait
        data/channels/pipe/epoch_pipes.py parent.wait
        data/channels/resolve.py self._sidecar.receive
        data/loader/executors/ray_data.py self._permits.acquire
        data/loader/workers/forkserver.py self._control.recv
        data/loader/workers/forkserver.py wait
        data/shards/task_pool.py connection.recv
        jobs/hosts/host_recorder.py stopped.wait
        jobs/output.py self._pieces.get
        jobs/output.py self._unshown.get
        offload/server.py listening.accept
    """,
    "Its other end waits with a deadline, and then kills this process.": """
        data/loader/workers/forkserver.py os.waitpid
        cluster/ray_node.py call.result
        cluster/ray_node.py each.result
    """,
    "It is called when the thing is there, after `done`, `poll` or a wait with a limit.": """
        cluster/offload_fleet.py self.ray.get
        data/channels/copy/fetcher.py work.result
        data/channels/copy/trees.py future.result
        data/loader/workers/child_process.py self.control.recv
        data/loader/workers/pool.py self._answers.recv
        data/shards/task_pool.py future.result
        data/storage/cache/cached_store.py done.exception
        data/storage/cache/cached_store.py done.result
        data/storage/cache/cached_store.py head.exception
        data/storage/cache/cached_store.py part.exception
        data/storage/client/requests.py sending.exception
        data/storage/client/retries.py task.exception
        data/storage/client/retries.py task.result
        data/storage/client/subprocess_client.py answer.exception
        data/storage/client/subprocess_client.py done.exception
        data/storage/client/subprocess_client.py done.result
        data/storage/client/subprocess_server.py done.exception
        data/storage/client/subprocess_server.py done.result
        jobs/hosts/offload_setup.py ended.result
        jobs/hosts/offload_setup.py self.ray.get
        jobs/hosts/rank_group.py self.ray_api.get
        jobs/sync/sync_process.py each.exception
        jobs/sync/sync_process.py each.result
        offload/connection.py self.connection.recv
        offload/connection.py self.connection.recv_into
        offload/proxy.py self._control.recv
        offload/server.py self._connection.receive
    """,
    "Requests to storage: each has its deadline in `Retrier` or `RetryPolicy`.": """
        data/channels/copy/fetcher.py parts.get
        data/channels/copy/fetcher.py parts.put
        data/channels/pipe/epoch_pipes.py self.part.result
        data/loader/shard_dataset.py future.result
        data/shards/index_batches.py future.result
        data/storage/cache/cached_store.py future.result
        data/storage/cache/cached_store.py head.result
        data/storage/cache/cached_store.py part.result
        data/storage/client/direct.py submit().result
        data/storage/client/requests.py self._parts.get
        data/storage/client/requests.py self._parts.put
        data/storage/client/requests.py sending.result
        data/storage/client/requests.py submit().result
        data/storage/client/retries.py tasks[0].result
        data/storage/client/subprocess_client.py self._request().result
        data/storage/remote_store.py self._connected().result
        data/storage/store.py self._pending.popleft().result
        jobs/sync/restore.py each.result
    """,
    "The socket has a timeout, or the kernel's user timeout (`set_user_timeout`).": """
        cluster/join_connections.py self._socket.recv
        cluster/join_connections.py self._socket.sendall
        data/storage/client/subprocess_client.py self._channel.receive
        data/storage/client/subprocess_protocol.py self._socket.recv_into
        data/storage/client/subprocess_protocol.py self._socket.sendall
        data/storage/client/subprocess_server.py self._channel.receive
        offload/protocol.py connection.recv
        offload/protocol.py connection.sendall
        offload/server.py self._heartbeats.join
        offload/server.py self._socket.sendall
    """,
    "A terminal that its user has stopped (ctrl-S) holds up the output of any program.": """
        jobs/output.py self._thread.join
        jobs/output.py self._unshown.put
    """,
    "A reader that is slower: back-pressure. It ends with the thread or process that reads.": """
        cluster/agent.py self._events.put
        data/loader/executors/ray_data.py self._taken.put
        data/storage/client/subprocess_server.py self._outbox.put
        offload/connection.py self._ended.put
    """,
    "It ends with the request that it is about, which is cancelled then.": """
        report/live/threads.py request.receive
    """,
    "Computing in this process's own threads, which wait for nothing.": """
        data/loader/collate.py column.result
        data/storage/cache/blocks.py self._queue.join
        jobs/hosts/offload_setup.py pending.result
    """,
}
DEADLINES = {"timeout", "timeout_s", "longest_s", "patience_s", "deadline_s", None}  # None: **more


def waits_in(text: str) -> Iterator[str]:
    """Yield the functions that a file calls without a deadline of the call's own."""
    has_queues, has_sockets = "Queue" in text, "socket" in text or "Pipe(" in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _is_endless(node, has_queues, has_sockets):
            yield re.sub(r"\(.*\)", "()", ast.unparse(node.func), flags=re.DOTALL)


def _is_endless(call: ast.Call, has_queues: bool, has_sockets: bool) -> bool:
    name = ast.unparse(call.func)
    owner, _, method = name.rpartition(".")
    if DEADLINES & {keyword.arg for keyword in call.keywords}:
        return False
    has_arguments, words = bool(call.args or call.keywords), ast.unparse(call)
    return (
        (method in WITHOUT_ARGUMENTS and bool(owner) and not has_arguments)
        or (method in OF_QUEUES and has_queues and _is_queue_call(call, owner, method))
        or (method in OF_SOCKETS and has_sockets and "MSG_DONTWAIT" not in words)
        or (method == "poll" and not has_arguments and re.search(r"poll(er)?$", owner) is not None)
        or (method in SYSTEM_WAITS and (owner in {"os", "signal"} or "dist" in owner))
        or (method in {"waitpid", "waitid"} and "WNOHANG" not in words)
        or (method in {"flock", "lockf"} and not re.search("LOCK_NB|LOCK_UN", words))
        or (owner == "subprocess" and method in OF_SUBPROCESS)
        or method in CONNECTIONS
        or name in {"ray.wait", "as_completed", "futures.wait", "input"}
        or (method == "get" and re.search(r"\bray(_api)?$", owner) is not None)
        or (name == "select.select" and len(call.args) < 4)
        or (name == "wait" and len(call.args) < 2)
    )


def _is_queue_call(call: ast.Call, owner: str, method: str) -> bool:
    expected = 0 if method == "get" else 1
    is_constant = owner.rpartition(".")[2].isupper()  # an environment variable
    return len(call.args) == expected and not call.keywords and not is_constant


def test_calls_without_a_deadline_are_those_that_are_listed_with_a_reason():
    found = {
        f"{path.relative_to(SOURCE).as_posix()} {function}"
        for path in SOURCE.rglob("*.py")
        for function in waits_in(path.read_text())
    }
    listed = {line.strip() for lines in REASONS.values() for line in lines.strip().splitlines()}
    assert found - listed == set(), "give it a timeout, or list it with the reason"
    assert listed - found == set(), "is no longer there, or has a deadline now"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("process.wait()", ["process.wait"]),
        ("process.wait(timeout=3)", []),
        ("process.wait(left_s)", []),
        ("thread.join()", ["thread.join"]),
        ("','.join(names)", []),
        ("subprocess.run(command, check=True)", ["subprocess.run"]),
        ("subprocess.run(command, timeout=3)", []),
        ("fcntl.flock(file, fcntl.LOCK_EX)", ["fcntl.flock"]),
        ("fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", []),
        ("from queue import Queue; messages.get()", ["messages.get"]),
        ("from queue import Queue; messages.get(timeout=1)", []),
        ("ray.get(calls)", ["ray.get"]),
        ("self.ray_api.get(calls, timeout=9)", []),
        ("import socket; listener.accept()", ["listener.accept"]),
        ("urlopen(url)", ["urlopen"]),
        ("os.waitpid(pid, 0)", ["os.waitpid"]),
        ("os.waitpid(pid, os.WNOHANG)", []),
        ("signal.sigwait(some)", ["signal.sigwait"]),
        ("select.select([a], [], [])", ["select.select"]),
        ("select.select([a], [], [], 1.0)", []),
        ("poller.poll()", ["poller.poll"]),
        ("pool.submit(work).result()", ["pool.submit().result"]),
    ],
)
def test_a_wait_is_recognised(code: str, found: list[str]):
    assert list(waits_in(code)) == found
