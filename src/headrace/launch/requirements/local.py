"""A job's requirements, installed on this host before its script starts.

SageMaker installs the requirements.txt of `source_dir`; here, too, where that is named.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.requirements.file import LEAVE_OUT, LONGEST_S, find_requirements
from headrace.launch.requirements.news import InstallNews
from headrace.launch.script_flags import ScriptOptions
from headrace.records.run_folder import Attempt, RunFolder

_HERE = "this host"


def install_here(
    options: ContractOptions, around: ScriptOptions, folder: RunFolder, attempt: Attempt
) -> None:
    """Have pip install what a job on this host needs, into the environment that it runs in.

    Args:
        options: Whether the folder of the code is named.
        around: Whether a file is named.
        folder: The run's.
        attempt: The attempt that begins.

    Raises:
        UsageError: There is no such file.
        LaunchError: It cannot be installed.
    """
    beside = Path(options.source_dir) if options.source_dir is not None else None
    file = find_requirements(around.requirements, beside)
    if file is None:
        return
    logs = folder.logs(attempt.number)
    news = InstallNews(file.name, folder, attempt.number)
    reading, writing = os.pipe()
    command = [
        sys.executable, "-u", "-P", "-m", "headrace.cluster.installing",
        "--parent", str(os.getpid()), "--announce", str(writing), "--job", secrets.token_hex(8),
        "--file", str(file), "--named", "no" if around.requirements is None else "yes",
        "--logs", str(logs), "--name", "host", "--longest-s", str(LONGEST_S),
    ]  # fmt: skip
    pip = subprocess.Popen(command, pass_fds=(writing,), env=env.child_environment())
    os.close(writing)
    try:
        with os.fdopen(reading) as told:
            for line in told:
                news.hear(_HERE, json.loads(line))
        code = pip.wait()
    except KeyboardInterrupt:  # it has got ctrl-C, too
        pip.wait()
        sys.exit(130)
    if code != 0:
        raise LaunchError(
            f"{file.name} could not be installed, and the script was not started. All that pip "
            f"said: {logs}/requirements-host.log. {LEAVE_OUT}"
        )
