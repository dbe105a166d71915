"""The `headrace cluster join` of a host: a Ray cluster of a job's hosts, the script on its head.

Every host of the job runs it. The cluster lasts as long as the job: each host ends its own node.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from headrace.cluster.host_identity import find_this_host, head_address
from headrace.cluster.join_connections import JoinClient, JoinServer
from headrace.cluster.ray_cluster import check_ray_is_installed, import_ray
from headrace.cluster.ray_node import (
    AUTH_FILE_HELP,
    FreeMemory,
    RayNode,
    RayNodeSpec,
    configured_token,
    head_flags,
    make_node_folder,
    new_token,
    object_store_bytes,
    write_token_file,
)
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LaunchError, UsageError
from headrace.core.process.parent_death import parent_bound_command
from headrace.core.process.supervision import (
    StoppedError,
    exit_code_of,
    pause,
    signals_blocked,
    wait_for,
)
from headrace.core.units import parse_seconds
from headrace.jobs.cli_args import TORCHRUN_FLAGS, split_at_script
from headrace.jobs.environment.existing_job import read_resource_config
from headrace.jobs.spec import AUTO_OFFLOAD
from headrace.platforms.cluster_hosts import ClusterHostFlags, ClusterHosts, find_cluster_hosts
from headrace.platforms.instance_groups import GroupSpec, parse_groups

_JOIN_FLAGS = ("--head", "--group", "--hosts", "--port", "--hosts-timeout", "--token-file")
_DECIDED = ("--engine", "--address")
_SHARED_FLAGS = ("--offload", "--driver")  # of `headrace run`
_PORT = 6379
_HOSTS_S = 600.0
_HOW = (
    "Write it as: headrace cluster join [its own flags] [flags of headrace run] script.py "
    "[arguments]."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The parsed command line of `headrace cluster join`."""

    host_flags: ClusterHostFlags
    port: int  # Ray's on the head; the join server listens on the next one
    hosts_s: float  # longest wait for the hosts
    token_file: str | None
    groups: tuple[GroupSpec, ...]  # those that the job needs; empty: all hosts that join
    driver: bool  # the script uses Ray itself
    run: tuple[str, ...]  # the flags of `headrace run`, the script and its arguments

    def cluster_hosts(self) -> ClusterHosts:
        """Return the cluster's hosts, and which one this is; raises UsageError."""
        variables = env.values_of([variable.name for variable in env.HOST_LIST_VARIABLES])
        return find_cluster_hosts(
            variables, read_resource_config(), self.host_flags, find_this_host
        )


def parse_join_flags(
    argv: Sequence[str], torchrun_flags: Mapping[str, bool] = TORCHRUN_FLAGS
) -> JoinOptions:
    """Return the parsed command line; `headrace run` parses the rest of it; raises UsageError.

    `--group NAME` is this host's group. `--group NAME=HOSTS`, a flag of `headrace run`, says how
    many hosts of a group the job needs.
    """
    own, run = _split(argv, torchrun_flags)
    for flag in _DECIDED:
        if flag in own:
            raise UsageError(f"{flag}: the cluster is the one that the hosts make. Leave it out.")
    last = {flag: values[-1] for flag, values in own.items()}
    groups = own.get("--group", [])
    own_groups = [group for group in groups if "=" not in group]
    if len(set(own_groups)) > 1:
        raise UsageError(
            f"--group {own_groups[0]} and --group {own_groups[1]}: this host is in one group. How "
            "many hosts of a group the job wants is --group NAME=HOSTS."
        )
    wanted = parse_groups([group for group in groups if "=" in group])
    offload = last.get("--offload")
    # `headrace run` waits as long for hosts to return.
    passed = [f"--hosts-timeout={last['--hosts-timeout']}"] if "--hosts-timeout" in last else []
    hosts = last.get("--hosts", "").split(",") if "--hosts" in last else []
    return JoinOptions(
        host_flags=ClusterHostFlags(
            head=last.get("--head"),
            group=own_groups[0] if own_groups else None,
            hosts=tuple(host.strip() for host in hosts if host.strip()),
            training=wanted[0].name if wanted else None,
            offload=offload if offload != AUTO_OFFLOAD else None,
        ),
        port=_port(last),
        hosts_s=parse_seconds(last.get("--hosts-timeout", f"{_HOSTS_S}s")),
        token_file=last.get("--token-file"),
        groups=wanted,
        driver="--driver" in own,
        run=(*passed, *run),
    )


def _split(
    argv: Sequence[str], torchrun_flags: Mapping[str, bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of flags that are read here, and the command line of `headrace run`."""
    own: dict[str, list[str]] = {}
    run: list[str] = []
    flags, script = split_at_script(argv, torchrun_flags)
    for each in flags:
        if each.lacks_value:
            raise UsageError(f"{each.name} needs a value. {_HOW}")
        flag = each.name.replace("_", "-")
        is_own = flag in _JOIN_FLAGS or flag in _DECIDED
        if is_own or flag in _SHARED_FLAGS:
            own.setdefault(flag, []).append(each.value or "")
        if not is_own:
            run += each.words
    if not script:
        raise UsageError(f"No script is named. {_HOW}")
    # A script may be called like a flag.
    return own, [*run, *(["--"] if script[0].startswith("-") else []), *script]


def _port(flags: Mapping[str, str]) -> int:
    text = flags.get("--port", str(_PORT))
    if not text.isdecimal() or not 1 <= int(text) < 65535:
        raise UsageError(
            f"--port {text}: a port of the head from 1 to 65534; Ray takes it, and the one after "
            "it is where hosts say that they are there."
        )
    return int(text)


_RAY_START_S = 120.0
_HOSTS_EXIT_S = 25.0  # a Ray node that does not stop on SIGTERM is killed before that
_POLL_S = 0.2
_STATUS_EVERY_S = 10.0


def join_cluster(argv: Sequence[str]) -> int:
    """Run this host's part of a job, and return the job's exit code, or 128 + a signal.

    Raises UsageError (wrong flags, or an environment that does not define the hosts), LaunchError
    (hosts are missing, the head is lost, or Ray does not start).
    """
    with signals_blocked() as blocked:  # before anything that starts threads is imported
        check_ray_is_installed()
        try:
            options = parse_join_flags(argv)
        except UsageError:  # perhaps of a flag that a newer torch has
            options = parse_join_flags(argv, _installed_flags())
        cluster_hosts = options.cluster_hosts()
        try:
            if cluster_hosts.is_head:
                options = parse_join_flags(argv, _installed_flags())
                return _Head(cluster_hosts, options, blocked).run()
            return _run_worker_host(cluster_hosts, options, partial(pause, blocked))
        except StoppedError as stopped:
            return 128 + stopped.number
        except LaunchError:
            import_ray()  # the better reason, where Ray is there and cannot be imported
            raise


def _installed_flags() -> Mapping[str, bool]:
    from headrace.jobs.torchrun_args import torchrun_flags  # imports torch

    return torchrun_flags()


class _Head:
    """The head's part of the job."""

    def __init__(
        self, cluster_hosts: ClusterHosts, options: JoinOptions, blocked: frozenset[signal.Signals]
    ) -> None:
        self._cluster_hosts = cluster_hosts
        self._options = options
        self._blocked = blocked
        self._pause = partial(pause, blocked)
        if not cluster_hosts.hosts and not options.groups:
            raise UsageError(
                f"How many hosts does the job on {cluster_hosts.head} have? Name them all, --hosts "
                "A,B,C, or say how many of each group: --group gpu=2 --group cpu=1."
            )
        from headrace.jobs.requirements import code_folder, find_requirements
        from headrace.jobs.torchrun_args import parse_torchrun_flags  # imports torch

        self._address = head_address(cluster_hosts.head, cluster_hosts.hosts)
        self._ray_address = f"{self._address}:{options.port}"
        cluster = ["--engine=ray", f"--address={self._ray_address}"]
        # Wrong flags of `headrace run` are reported before anything starts.
        self._wanted = {group.name: group.hosts for group in options.groups}
        self._known = {group.name: group.hosts for group in cluster_hosts.groups}
        groups = self._wanted or self._known or {cluster_hosts.group: 1}
        job = parse_torchrun_flags([*cluster, *self._group_flags(groups), *options.run])
        find_requirements(job.spec.environment.requirements, code_folder(job))
        self._token = _given_token(cluster_hosts, options)

    def run(self) -> int:
        """Return the job's exit code, once the other hosts have left and the cluster is down."""
        server = JoinServer(
            address=self._address, port=self._options.port + 1, head=self._cluster_hosts.head,
            group=self._cluster_hosts.group, hosts=self._cluster_hosts.hosts,
            token=self._token or new_token(), sends_token=self._token is None,
        )  # fmt: skip
        code = LaunchError.exit_code
        spec = _node_spec(
            self._cluster_hosts, self._cluster_hosts.head, self._address, self._options
        )
        with _ray_node(spec, head_flags(self._options.port), server.token) as (node, variables):
            try:
                _wait_until_up(node, self._pause)
                server.start(self._ray_address)
                self._wait_for_hosts(server, node)
                server.withhold_token()
                groups = self._wanted or self._joined_hosts(server)
                code = self._run_script(groups, node, variables)
            except StoppedError as stopped:
                code = 128 + stopped.number
                raise
            except HeadraceError as error:
                code = error.exit_code
                raise
            finally:
                server.end(code, _HOSTS_EXIT_S)
        return code

    def _group_flags(self, groups: Mapping[str, int]) -> list[str]:
        cores = {group.name: group.cpus for group in self._options.groups if group.cpus}
        return [
            f"--group={name}={hosts}" + (f":cpus={cores[name]}" if name in cores else "")
            for name, hosts in groups.items()
        ]

    def _joined_hosts(self, server: JoinServer) -> dict[str, int]:
        """Return how many hosts of each group have joined, the training group first."""
        training = next(iter(self._known), self._cluster_hosts.group)
        return dict(sorted(server.groups().items(), key=lambda group: group[0] != training))

    def _wait_for_hosts(self, server: JoinServer, node: RayNode) -> None:
        longest_s = self._options.hosts_s
        deadline_s = time.monotonic() + longest_s
        print_at_s = time.monotonic() + _STATUS_EVERY_S
        while missing := server.missing(self._wanted):
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise LaunchError(
                    f"Not all hosts have come after {longest_s:.0f} s; missing: {missing}. Run "
                    "`headrace cluster join` on each of them, with the same --port, and let hosts "
                    "reach one another on all ports; or wait longer: --hosts-timeout."
                )
            if now_s > print_at_s:
                print_status(f"waiting for hosts: {missing}")
                print_at_s += _STATUS_EVERY_S
            self._pause(_POLL_S)
            _check_alive(node)

    def _run_script(
        self, groups: Mapping[str, int], node: RayNode, variables: Mapping[str, str | None]
    ) -> int:
        summary = ", ".join(f"{group} {hosts}" for group, hosts in groups.items())
        print_status(f"a Ray cluster at {self._ray_address}, hosts: {summary}")
        command = [
            sys.executable, "-u", "-P", "-m", "headrace.cli.main", "run", "--engine=ray",
            f"--address={self._ray_address}", *self._group_flags(groups), *self._options.run,
        ]  # fmt: skip
        child = subprocess.Popen(
            parent_bound_command(sys.executable, command),
            env=env.child_environment(variables),
            start_new_session=True,  # ctrl-C reaches only this process, which passes it on once
        )

        def check_node() -> None:
            if child.poll() is None and node.has_ended():
                print_status(f"Ray has ended on {node.name}. It said:\n{node.last_lines()}")
                child.terminate()

        # `headrace run` itself kills what does not stop in time.
        returncode = wait_for(child, self._blocked, own_session=True, one_ended=check_node)
        return exit_code_of(returncode)


def _run_worker_host(
    cluster_hosts: ClusterHosts, options: JoinOptions, pause_host: Callable[[float], None]
) -> int:
    """Join this host to the head, stay until the job has ended, and return its exit code."""
    token = _given_token(cluster_hosts, options)
    with closing(
        JoinClient(
            cluster_hosts.head, options.port + 1, longest_s=options.hosts_s, pause=pause_host
        )
    ) as client:
        ray_address, token = client.request_join(cluster_hosts.here, cluster_hosts.group, token)
        name = cluster_hosts.here or client.own_address
        spec = _node_spec(cluster_hosts, name, client.own_address, options)
        with _ray_node(spec, [f"--address={ray_address}"], token) as (node, _):

            def pause_and_poll(seconds: float) -> None:
                pause_host(seconds)
                client.poll()

            _wait_until_up(node, pause_and_poll)
            client.report_up()
            print_status(f"{name} ({cluster_hosts.group}) has joined {cluster_hosts.head}")
            while client.exit_code is None:
                _check_alive(node)
                pause_and_poll(_POLL_S)
    if client.exit_code:
        print_status(f"the job has failed on {cluster_hosts.head}: exit code {client.exit_code}")
    return client.exit_code


def _given_token(cluster_hosts: ClusterHosts, options: JoinOptions) -> str | None:
    token = configured_token(options.token_file)
    if token is None and not cluster_hosts.hosts:
        raise UsageError(
            f"The hosts that join {cluster_hosts.head} are not known by name, so that no token can "
            f"be handed to them. Name them, --hosts A,B,C, or give each the token. {AUTH_FILE_HELP}"
        )
    return token


def _node_spec(hosts: ClusterHosts, name: str, address: str, options: JoinOptions) -> RayNodeSpec:
    store_bytes = object_store_bytes(FreeMemory.here(), holds_data=options.driver)
    return RayNodeSpec(group=hosts.group, name=name, address=address, store_bytes=store_bytes)


@contextmanager
def _ray_node(
    node_spec: RayNodeSpec, ray_flags: Sequence[str], token: str
) -> Iterator[tuple[RayNode, dict[str, str | None]]]:
    """Run a Ray node in the context; gives the node, and the variables of its clients."""
    folder = make_node_folder()
    try:
        variables = write_token_file(folder / "token", token)
        variables[env.RAY_ADDRESS.name] = None  # that of another cluster
        variables[env.RAY_CLUSTERS.name] = None  # set beside hosts emulated on this machine
        node = RayNode(node_spec, ray_flags, folder / "node", variables)
        try:
            yield node, variables
        finally:
            node.request_end()
            node.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_up(node: RayNode, pause: Callable[[float], None]) -> None:
    deadline_s = time.monotonic() + _RAY_START_S
    while not node.is_up():
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"Ray did not start on {node.name} in {_RAY_START_S:.0f} s. It said:\n"
                f"{node.last_lines()}"
            )
        pause(_POLL_S)


def _check_alive(node: RayNode) -> None:
    if node.has_ended():
        raise LaunchError(
            f"Ray has ended on {node.name}, so that this host has no part in the job any more; "
            f"often memory ran out. It said:\n{node.last_lines()}"
        )
