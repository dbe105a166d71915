"""The process that looks whether mounted channels change while a job runs.

`python -m headrace.data.copies.watching --parent PID` ends with whoever started it. It reads a
request, one line, and lists the channels. Told "end" it lists them once more, and says on stderr
what has changed; where its input ends it goes at once.
"""

from __future__ import annotations

import os
import sys

from headrace.core.errors import HeadraceError
from headrace.data.copies.beside import begin_beside
from headrace.data.copies.changes import tell_changes, tell_unknown
from headrace.data.copies.listing import Listing, list_channel
from headrace.data.copies.request import END, CopyRequest
from headrace.data.storage import StorageConfig

_READ = "some of them as they were before, or as they are now"


def main() -> None:
    """List, wait, and list again."""
    begin_beside(int(sys.argv[2]))
    request = CopyRequest.from_json(sys.stdin.readline())
    config = StorageConfig()
    before: dict[str, Listing | HeadraceError] = {}
    for wanted in request.channels:
        try:
            before[wanted.name] = list_channel(wanted, config)
        except HeadraceError as error:
            before[wanted.name] = error
    if sys.stdin.readline().strip() == END:
        for wanted in request.channels:
            listing = before[wanted.name]
            if isinstance(listing, Listing):
                tell_changes(wanted, listing, config, read=_READ)
            else:
                tell_unknown(wanted.name, listing)
    os._exit(0)  # threads of the client may still want the interpreter


if __name__ == "__main__":
    main()
