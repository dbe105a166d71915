"""A script as a rank of torchrun's, with what the first rank of this host has found for it."""

from __future__ import annotations

from pathlib import Path

from headrace.launch.failure import describe_end
from headrace.launch.own_flags import DirectJob
from headrace.launch.shown_script import run_shown, script_command
from headrace.launch.site.outer_rank import OuterRank
from headrace.launch.site.sites import Site
from headrace.launch.supervise import exit_code_of, signals_held
from headrace.launch.told import tell
from headrace.records.run_folder import RunFolder


def follow_leader(job: DirectJob, script: str, rank: OuterRank) -> int:
    """Run the script and return its exit code, or 128 + a signal.

    Args:
        job: What the command line asks for.
        script: The script, or a module's name.
        rank: This process.

    Raises:
        LaunchError: There is no first rank, or it has ended.
    """
    led = rank.wait_for_leader()
    site = Site(environment={}, arguments=led.arguments, folder=led.folder, places=dict(led.places))
    log = RunFolder(Path(led.run_dir)).logs(led.attempt) / f"rank-{rank.world.rank}.stderr"
    with signals_held() as held:
        returncode = run_shown(
            script_command(job, script, site), site=site, environment=led.environment, log=log,
            held=held,
        )  # fmt: skip
        code = exit_code_of(returncode)
        rank.note_end(code)
    if returncode != 0:
        tell(f"headrace: {job.script}: {describe_end(returncode)}; log: {log}\n")
    return code
