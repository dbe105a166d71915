"""Reads a shard in a thread, so that parsing is ahead of the loop that takes the records."""
import json
import queue
import threading

_END = object()


class ThreadedReader:
    def __init__(self, path, depth=128):
        self._buffer = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(path,), daemon=True)
        self._thread.start()

    def _fill(self, path):
        with open(path) as lines:
            for line in lines:
                self._buffer.put(json.loads(line))
        self._buffer.put(_END)

    def __iter__(self):
        while True:
            record = self._buffer.get()
            if record is _END:
                return
            yield record
