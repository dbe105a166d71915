"""`headrace cluster join`: the hosts of a job make a Ray cluster, and the head runs a script on it.

Every host runs it. The cluster lasts as long as the job: each host ends its own part of it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from headrace.cluster.addresses import heads_address
from headrace.cluster.head_link import HeadLink, Patience
from headrace.cluster.node_process import NodeProcess, NodeShape, head_flags, make_node_folder
from headrace.cluster.ray_import import import_ray
from headrace.cluster.roll_call import RollCall
from headrace.cluster.store_size import FreeMemory, store_bytes
from headrace.cluster.token import HOW_TO_MAKE_ONE, given_token, new_token, write_token_file
from headrace.contracts.contract import Contract
from headrace.core import env
from headrace.core.errors import HeadraceError, LaunchError, UsageError
from headrace.core.tied import tied_command
from headrace.launch.hosts.join_flags import JoinOptions, parse_join_flags
from headrace.launch.supervise import STOPPING, exit_code_of, signals_held, wait_for
from headrace.launch.told import tell

_START_S = 120.0
_LEAVE_S = 25.0  # a Ray node that does not end when asked to is killed before that
_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 10.0


def join(argv: Sequence[str]) -> int:
    """Take this host's part in a job, and return the job's exit code, or 128 + a signal.

    Args:
        argv: Flags of `headrace cluster join` and of `headrace run`, the script, its arguments.

    Raises:
        UsageError: Wrong flags, or an environment that does not say which hosts there are.
        LaunchError: Hosts are missing, the head is lost, or Ray does not start.
    """
    with signals_held() as held:  # before anything that starts threads is imported
        import_ray()
        options = parse_join_flags(argv)
        contract = options.contract()
        waiting = _Waiting(held)
        try:
            if contract.is_head:
                return _Head(contract, options, waiting).run()
            return _run_other(contract, options, waiting)
        except _StoppedError as stopped:
            return 128 + stopped.number


class _StoppedError(Exception):
    """Somebody asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Waiting:
    """Waits during which a signal is heeded.

    Args:
        held: What `signals_held` gave.
    """

    def __init__(self, held: frozenset[signal.Signals]) -> None:
        self.held = held

    def pause(self, seconds: float) -> None:
        """Wait; raises _StoppedError as soon as this process is asked to stop."""
        caught = signal.sigtimedwait(self.held, seconds)
        if caught is not None and caught.si_signo in STOPPING:
            raise _StoppedError(caught.si_signo)


class _Head:
    """The head's part."""

    def __init__(self, contract: Contract, options: JoinOptions, waiting: _Waiting) -> None:
        self._contract = contract
        self._options = options
        self._waiting = waiting
        if not contract.hosts and not options.groups:
            raise UsageError(
                f"How many hosts does the job on {contract.head} have? Name them all, --hosts "
                "A,B,C, or say how many of each group: --group gpu=2 --group cpu=1."
            )
        from headrace.launch.flags import parse_torchrun_flags  # imports torch
        from headrace.launch.requirements.file import code_folder, find_requirements

        self._address = heads_address(contract.head, contract.hosts)
        self._ray_address = f"{self._address}:{options.port}"
        cluster = ["--engine=ray", f"--address={self._ray_address}"]
        # What is wrong with the run's flags is told before anything starts.
        groups = self._wanted() or self._told() or {contract.group: 1}
        job = parse_torchrun_flags([*cluster, *self._group_flags(groups), *options.run])
        find_requirements(job.around.requirements, code_folder(job))
        self._token = _given_token(contract, options)

    def run(self) -> int:
        """Return the job's exit code, once the other hosts have left and the cluster is down."""
        roll = RollCall(
            address=self._address, port=self._options.port + 1, head=self._contract.head,
            group=self._contract.group, hosts=self._contract.hosts,
            token=self._token or new_token(), hands_out=self._token is None, tell=tell,
        )  # fmt: skip
        shape = NodeShape(
            group=self._contract.group, name=self._contract.head, address=self._address,
            store_bytes=store_bytes(FreeMemory.here(), holds_data=self._options.driver),
        )  # fmt: skip
        code = LaunchError.exit_code
        with _ray_node(shape, head_flags(self._options.port), roll.token) as (node, variables):
            try:
                _wait_until_up(node, self._waiting.pause)
                roll.start(self._ray_address)
                self._wait_for_hosts(roll, node)
                roll.keep_token()
                code = self._run_script(self._wanted() or self._there(roll), node, variables)
            except _StoppedError as stopped:
                code = 128 + stopped.number
                raise
            except HeadraceError as error:
                code = error.exit_code
                raise
            finally:
                roll.end(code, _LEAVE_S)
        return code

    def _wanted(self) -> dict[str, int]:
        return {group.name: group.hosts for group in self._options.groups}

    def _group_flags(self, groups: Mapping[str, int]) -> list[str]:
        cores = {group.name: group.cpus for group in self._options.groups if group.cpus}
        return [
            f"--group={name}={hosts}" + (f":cpus={cores[name]}" if name in cores else "")
            for name, hosts in groups.items()
        ]

    def _told(self) -> dict[str, int]:
        return {group.name: group.hosts for group in self._contract.groups}

    def _there(self, roll: RollCall) -> dict[str, int]:
        """Return how many hosts of each group have come, the group that trains first."""
        there = roll.groups()
        training = next(iter(self._told()), self._contract.group)
        return dict(sorted(there.items(), key=lambda group: group[0] != training))

    def _wait_for_hosts(self, roll: RollCall, node: NodeProcess) -> None:
        longest_s = self._options.hosts_s
        deadline_s = time.monotonic() + longest_s
        tell_s = time.monotonic() + _TELL_EVERY_S
        while missing := roll.missing(self._wanted()):
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise LaunchError(
                    f"Not all hosts have come after {longest_s:.0f} s; missing: {missing}. Run "
                    "`headrace cluster join` on each of them, with the same --port, and let hosts "
                    "reach one another on all ports; or wait longer: --hosts-timeout."
                )
            if now_s > tell_s:
                tell(f"headrace: waiting for hosts: {missing}\n")
                tell_s += _TELL_EVERY_S
            self._waiting.pause(_LOOK_EVERY_S)
            _check_alive(node)

    def _run_script(
        self, groups: Mapping[str, int], node: NodeProcess, variables: Mapping[str, str | None]
    ) -> int:
        told = ", ".join(f"{group} {hosts}" for group, hosts in groups.items())
        tell(f"headrace: a Ray cluster at {self._ray_address}, hosts: {told}\n")
        command = [
            sys.executable, "-u", "-P", "-m", "headrace.cli.main", "run", "--engine=ray",
            f"--address={self._ray_address}", *self._group_flags(groups), *self._options.run,
        ]  # fmt: skip
        child = subprocess.Popen(
            tied_command(sys.executable, command),
            env=env.child_environment(variables),
            start_new_session=True,  # ctrl-C comes to us alone, and is passed on once
        )

        def look() -> None:
            if child.poll() is None and node.has_ended():
                tell(f"headrace: Ray has ended on {node.name}. It said:\n{node.last_lines()}\n")
                child.terminate()

        # It kills by itself what does not stop in time.
        returncode = wait_for(child, self._waiting.held, own_session=True, one_ended=look)
        return exit_code_of(returncode)


def _run_other(contract: Contract, options: JoinOptions, waiting: _Waiting) -> int:
    """Have this host join the head, stay until the job has ended, and return its exit code."""
    token = _given_token(contract, options)
    patience = Patience(longest_s=options.hosts_s, pause=waiting.pause, tell=tell)
    with closing(HeadLink(contract.head, options.port + 1, patience)) as link:
        welcome = link.come_in(contract.here, contract.group, token)
        name = contract.here or link.own_address
        shape = NodeShape(
            group=contract.group, name=name, address=link.own_address,
            store_bytes=store_bytes(FreeMemory.here(), holds_data=options.driver),
        )  # fmt: skip
        place = [f"--address={welcome.ray_address}"]
        with _ray_node(shape, place, welcome.token) as (node, _):

            def pause(seconds: float) -> None:
                waiting.pause(seconds)
                link.look()

            _wait_until_up(node, pause)
            link.say_up()
            tell(f"headrace: {name} ({contract.group}) has joined {contract.head}\n")
            while link.exit_code is None:
                _check_alive(node)
                pause(_LOOK_EVERY_S)
    if link.exit_code:
        tell(f"headrace: the job has failed on {contract.head}: exit code {link.exit_code}\n")
    return link.exit_code


def _given_token(contract: Contract, options: JoinOptions) -> str | None:
    token = given_token(options.token_file)
    if token is None and not contract.hosts:
        raise UsageError(
            f"The hosts that join {contract.head} are not known by name, so that no token can be "
            f"handed to them. Name them, --hosts A,B,C, or give each the token. {HOW_TO_MAKE_ONE}"
        )
    return token


@contextmanager
def _ray_node(
    shape: NodeShape, place: Sequence[str], token: str
) -> Iterator[tuple[NodeProcess, dict[str, str | None]]]:
    """Run a Ray node meanwhile; gives it, and the variables of what connects to its cluster."""
    folder = make_node_folder()
    try:
        variables = write_token_file(folder / "token", token)
        variables[env.RAY_ADDRESS.name] = None  # of another cluster
        node = NodeProcess(shape, place, folder / "node", variables)
        try:
            yield node, variables
        finally:
            node.ask_to_end()
            node.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_up(node: NodeProcess, pause: Callable[[float], None]) -> None:
    deadline_s = time.monotonic() + _START_S
    while not node.is_up():
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"Ray did not start on {node.name} in {_START_S:.0f} s. It said:\n"
                f"{node.last_lines()}"
            )
        pause(_LOOK_EVERY_S)


def _check_alive(node: NodeProcess) -> None:
    if node.has_ended():
        raise LaunchError(
            f"Ray has ended on {node.name}, so that this host has no part in the job any more; "
            f"often memory ran out. It said:\n{node.last_lines()}"
        )
