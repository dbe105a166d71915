"""The process in which a script runs once on a host of a job, without torchrun.

`python -m headrace.launch.hosts.once --parent PID --announce FD --go FD --logs FOLDER --once JSON`
is started by the host's agent, and ends with it. Its exit code is the script's; how the script
failed, or why it could not begin, is announced as a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.lifetime import die_with_parent
from headrace.core.tied import tied_command
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.failure import RankFailure, describe_end, last_traceback, last_write_s
from headrace.launch.follow import Follower
from headrace.launch.hosts.together import announce_refusal, begin_together
from headrace.launch.leftovers import Leftovers
from headrace.launch.script_flags import ScriptOptions
from headrace.launch.site.host_site import host_site
from headrace.launch.site.site_plan import SitePlan
from headrace.launch.site.sites import Site, program_command
from headrace.launch.site.surroundings import with_surroundings
from headrace.launch.supervise import GRACE_S, exit_code_of, signals_held, wait_for
from headrace.launch.uploads.flags import UploadOptions
from headrace.launch.uploads.host_uploads import HostUploads
from headrace.launch.uploads.job_output import member_output


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceOnHost:
    """A script, and the host that it runs on.

    Attributes:
        prefix: What its lines begin with.
        name: The host's, as the launcher calls it.
        number: The host's among all of them.
        restarts: How often the job was started before.
        script: Its path, or its module's name.
        is_module: The script is a module's name.
        is_program: It is a program of its own, not Python's.
        arguments: The user's own.
        contract: What it is told: the fields of `ContractOptions`.
        around: What is around it: the fields of `ScriptOptions`.
        plan: The job's hosts, as `SitePlan` writes them.
        host: This one, as the plan calls it.
        cores: The host's.
        devices: Likewise.
        uploads: What is kept elsewhere: the fields of `UploadOptions`.
        kept_as: What this host's checkpoints are kept as.
        kept_by: Likewise, of all hosts.
        sends_part: What it makes goes to the output path for the launcher to put together.
    """

    prefix: str
    name: str
    number: int
    restarts: int
    script: str
    is_module: bool
    is_program: bool
    arguments: tuple[str, ...]
    contract: Mapping[str, Any]
    around: Mapping[str, Any]
    plan: str
    host: str
    cores: int
    devices: int
    uploads: Mapping[str, Any]
    kept_as: str
    kept_by: tuple[str, ...]
    sends_part: bool

    def site(self) -> Site:
        """Make the host's site; raises UsageError and LaunchError."""
        folder = Path(env.RUN_DIR.get() or ".")
        site = host_site(
            self.contract_options(), SitePlan.from_json(self.plan), self.host,
            script=self.script, is_module=self.is_module, folder=folder,
            devices=self.devices, cores=self.cores or None, arguments=self.arguments,
            environment=self.around["environment"],
        )  # fmt: skip
        around = {**self.around, "dependencies": tuple(self.around["dependencies"])}
        return with_surroundings(site, ScriptOptions(**around), folder)

    def contract_options(self) -> ContractOptions:
        """Return what the script is told."""
        return ContractOptions(**{**self.contract, "contracts": tuple(self.contract["contracts"])})

    def host_uploads(self, site: Site) -> HostUploads:
        """Return what the host keeps elsewhere; raises UsageError."""
        return HostUploads(
            UploadOptions(**self.uploads), site, Path(env.RUN_DIR.get() or "."),
            kept_as=self.kept_as, kept_by=self.kept_by,
        )  # fmt: skip

    def command(self, site: Site) -> list[str]:
        """Return the command line of the script itself."""
        if self.is_program:
            return program_command(self.script, self.arguments, site)
        python = env.PYTHON_EXEC.get() or sys.executable
        module = ["-m", self.script] if self.is_module else [str(Path(self.script).absolute())]
        return [python, "-u", *module, *site.arguments, *self.arguments]


def main(arguments: Sequence[str]) -> int:
    """Run the script and return its exit code."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(told["--parent"]))
    announce_fd = int(told["--announce"])
    once = OnceOnHost(**json.loads(told["--once"]))
    logs = Path(told["--logs"])
    if once.restarts:
        logs /= f"restart-{once.restarts}"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        site = once.site()
        uploads = once.host_uploads(site)
        output = member_output(UploadOptions(**once.uploads), once.contract_options(), once)
        output.begin()
        uploads.fetch()
        begin_together(announce_fd, int(told["--go"]))
    except HeadraceError as error:
        announce_refusal(announce_fd, error)
        return error.exit_code
    code = _run(once, site, uploads, logs)
    output.finish()
    if code != 0:
        _announce(announce_fd, once, code, logs)
    return exit_code_of(code)


def _run(once: OnceOnHost, site: Site, uploads: HostUploads, logs: Path) -> int:
    streams = {name: logs / f"{once.name}.{name}" for name in ("stdout", "stderr")}
    command = once.command(site)
    leftovers = Leftovers()
    with signals_held() as held:
        uploads.start()
        with streams["stdout"].open("wb") as out, streams["stderr"].open("wb") as err:
            child = subprocess.Popen(
                tied_command(
                    sys.executable, site.placed(command), told_through=leftovers.told_through
                ),
                stdout=out,
                stderr=err,
                env=env.child_environment({**site.environment, **uploads.environment()}),
                cwd=site.folder,
                start_new_session=True,
            )
        follower = Follower()
        follower.follow(streams["stdout"], f"[{once.prefix}] ", sys.stdout.buffer)
        follower.follow(streams["stderr"], f"[{once.prefix}] ", sys.stderr.buffer)
        # The agent counts the grace, and kills.
        code = wait_for(
            child, held, own_session=True,
            grace_s=lambda: GRACE_S if site.failure() else None,
        )  # fmt: skip
        leftovers.end()  # as with the container that the script would have had
        follower.close()
        told = last_traceback(streams["stderr"]) if code else ""
        verdict = site.verdict(exit_code_of(code))
        site.note_end(verdict, command, told)
        uploads.finish(clean=code >= 0)
    return code if verdict == exit_code_of(code) else verdict


def _announce(descriptor: int, once: OnceOnHost, code: int, logs: Path) -> None:
    log = logs / f"{once.name}.stderr"
    first = RankFailure(
        rank=once.number, returncode=code, seen_s=time.time(), last_words_s=last_write_s(log)
    )
    message = (
        f"headrace: {once.name} failed: {describe_end(code)}\n{last_traceback(log).rstrip()}\n"
        f"headrace: its whole log: {log}\n"
    )
    failure = {"first": asdict(first), "message": message, "logs": str(logs)}
    os.write(descriptor, json.dumps({"failure": failure}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
