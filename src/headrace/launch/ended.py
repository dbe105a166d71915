"""What is left to do once a job has ended: it is written down, and told."""

from __future__ import annotations

from headrace.core.errors import LaunchError
from headrace.launch.told import tell
from headrace.records.run_folder import RunFolder


def write_down_end(folder: RunFolder, attempt: int, exit_code: int) -> None:
    """Write down how an attempt ended, where that can be."""
    # A full disk, or a script that removed its runs, must not cost the script's own exit code.
    try:
        folder.end_attempt(attempt, exit_code)
    except (OSError, LaunchError) as error:
        tell(f"headrace: that the run ended with {exit_code} cannot be written down: {error}\n")


def tell_how_it_went(folder: RunFolder, attempt: int) -> None:
    """Tell the verdict of an attempt that has ended, and what rules say that were asked for."""
    # Imported once the job has ended: see `signals_held` on threads, and NumPy starts some.
    from headrace.launch.estimator.rules_told import tell_rules
    from headrace.launch.verdict import tell_verdict

    tell_verdict(folder, attempt)
    tell_rules(folder, attempt)
