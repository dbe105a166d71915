import queue
import threading

from torch.utils.data import DataLoader


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, max_prefetch):
        super().__init__(daemon=True)
        self.queue = queue.Queue(max_prefetch)
        self.generator = generator
        self.start()

    def run(self):
        try:
            for item in self.generator:
                self.queue.put((item, None))
            self.queue.put((None, StopIteration()))
        except BaseException as error:
            self.queue.put((None, error))

    def __iter__(self):
        return self

    def __next__(self):
        item, error = self.queue.get()
        if error is not None:
            raise error
        return item


class DataLoaderX(DataLoader):
    """A DataLoader that is drained by a thread of its own."""

    max_prefetch = 4

    def __iter__(self):
        return BackgroundGenerator(super().__iter__(), self.max_prefetch)
