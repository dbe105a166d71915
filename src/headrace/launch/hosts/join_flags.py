"""The command line of `headrace cluster join`: its own flags, and those of `headrace run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.cluster.addresses import find_here
from headrace.contracts.contract import Contract, ContractFlags, contract_of
from headrace.contracts.groups import Group, parse_groups
from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.units import parse_seconds
from headrace.launch.hosts.cluster_flags import AUTO
from headrace.launch.site.outer_job import resource_config

_OWN = ("--head", "--group", "--hosts", "--port", "--hosts-timeout", "--token-file")
_DECIDED = ("--engine", "--address")
_READ_TOO = ("--offload", "--driver")  # of `headrace run`
_PORT = 6379
_HOSTS_S = 600.0
_HOW = (
    "Write it as: headrace cluster join [its own flags] [flags of headrace run] script.py "
    "[arguments]."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What a command line of `headrace cluster join` asks for.

    Attributes:
        told: What it says about hosts.
        port: Of Ray on the head; the one after it is where hosts say that they are there.
        hosts_s: Longest wait for the hosts, in seconds.
        token_file: Holds Ray's token; None: not told.
        groups: What the job wants; empty: all hosts there are.
        driver: The script uses Ray itself.
        run: The flags of `headrace run`, the script and its arguments.
    """

    told: ContractFlags
    port: int
    hosts_s: float
    token_file: str | None
    groups: tuple[Group, ...]
    driver: bool
    run: tuple[str, ...]

    def contract(self) -> Contract:
        """Return which hosts there are, and which one this is; raises UsageError."""
        names = [variable.name for variable in env.HOSTS_OF_THE_JOB]
        return contract_of(env.values_of(names), resource_config(), self.told, find_here)


def parse_join_flags(argv: Sequence[str]) -> JoinOptions:
    """Return what a command line asks for; `headrace run` reads the rest of it.

    `--group NAME` is this host's group; `--group NAME=HOSTS`, which `headrace run` takes, is how
    many hosts of a group the job wants.

    Raises:
        UsageError: There is no script, or a flag that cannot be.
    """
    own, run = _split(argv)
    for flag in _DECIDED:
        if flag in own:
            raise UsageError(f"{flag}: the cluster is the one that the hosts make. Leave it out.")
    told = {flag: values[-1] for flag, values in own.items()}
    groups = own.get("--group", [])
    of_here = [group for group in groups if "=" not in group]
    if len(set(of_here)) > 1:
        raise UsageError(
            f"--group {of_here[0]} and --group {of_here[1]}: this host is in one group. How many "
            "hosts of a group the job wants is --group NAME=HOSTS."
        )
    wanted = parse_groups([group for group in groups if "=" in group])
    offload = told.get("--offload")
    # `headrace run` waits as long for hosts that come back.
    passed = [f"--hosts-timeout={told['--hosts-timeout']}"] if "--hosts-timeout" in told else []
    hosts = told.get("--hosts", "").split(",") if "--hosts" in told else []
    return JoinOptions(
        told=ContractFlags(
            head=told.get("--head"),
            group=of_here[0] if of_here else None,
            hosts=tuple(host.strip() for host in hosts if host.strip()),
            training=wanted[0].name if wanted else None,
            offload=offload if offload != AUTO else None,
        ),
        port=_port(told),
        hosts_s=parse_seconds(told.get("--hosts-timeout", f"{_HOSTS_S}s")),
        token_file=told.get("--token-file"),
        groups=wanted,
        driver="--driver" in own,
        run=(*passed, *run),
    )


def _split(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of flags that are looked at here, and what is the run's, in its order."""
    from headrace.launch.flags import flags_without_value  # imports torch

    without_value = flags_without_value()
    own: dict[str, list[str]] = {}
    run: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        is_own = flag in _OWN or flag in _DECIDED
        # `-t 3` has its value in a word of its own, `-t3` has not.
        follows = not equals and word not in without_value and (is_own or _is_bare(word))
        if follows and not rest:
            raise UsageError(f"{name} needs a value. {_HOW}")
        value = rest.pop(0) if follows else value
        if is_own or flag in _READ_TOO:
            own.setdefault(flag, []).append(value)
        if not is_own:
            run += [word, value] if follows else [word]
    if not [word for word in rest if word != "--"]:
        raise UsageError(f"No script is named. {_HOW}")
    return own, [*run, *rest]


def _is_bare(word: str) -> bool:
    return word.startswith("--") or len(word) == 2


def _port(told: Mapping[str, str]) -> int:
    text = told.get("--port", str(_PORT))
    if not text.isdecimal() or not 1 <= int(text) < 65535:
        raise UsageError(
            f"--port {text}: a port of the head from 1 to 65534; Ray takes it, and the one after "
            "it is where hosts say that they are there."
        )
    return int(text)
