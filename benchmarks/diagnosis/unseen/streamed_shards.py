"""Train on shards that are streamed, as tar archives, from a server with little bandwidth."""

import http.server
import io
import multiprocessing
import tarfile
import time
import urllib.request

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_num_threads(1)

CLIP_BYTES, CLIPS_PER_SHARD, SHARDS = 32_768, 100, 20
CHUNK_BYTES, CHUNK_SECONDS = 8_192, 0.002  # 4 MB/s for each connection


def shard():
    """Return a tar archive of clips."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(CLIPS_PER_SHARD):
            member = tarfile.TarInfo(f"{number:03}.pcm")
            member.size = CLIP_BYTES
            archive.addfile(member, io.BytesIO(bytes([number]) * CLIP_BYTES))
    return buffer.getvalue()


class Bucket(http.server.BaseHTTPRequestHandler):
    """Sends the same shard under every name, slowly."""

    content = shard()

    def do_GET(self):
        """Answer."""
        self.send_response(200)
        self.end_headers()
        for start in range(0, len(self.content), CHUNK_BYTES):
            time.sleep(CHUNK_SECONDS)
            self.wfile.write(self.content[start : start + CHUNK_BYTES])

    def log_message(self, *_):
        """Say nothing."""


class Clips(IterableDataset):
    """Clips of shards, which are dealt out to the workers."""

    def __init__(self, urls):
        self.urls = urls

    def __iter__(self):
        worker = get_worker_info()
        for url in self.urls[worker.id :: worker.num_workers]:
            with (
                urllib.request.urlopen(url) as response,  # noqa: S310
                tarfile.open(fileobj=response, mode="r|") as archive,
            ):
                for member in archive:
                    clip = archive.extractfile(member).read()  # at fault
                    signal = np.frombuffer(clip, np.int16).astype(np.float32) / 32_768
                    yield torch.from_numpy(signal), int(member.name[:3]) % 10


def main():
    """Train on every shard once."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    process = multiprocessing.Process(target=server.serve_forever, daemon=True)
    process.start()
    urls = [f"http://127.0.0.1:{server.server_port}/clips-{n:05}.tar" for n in range(SHARDS)]
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for signals, labels in DataLoader(Clips(urls), batch_size=16, num_workers=2):
        loss = nn.functional.cross_entropy(model(signals.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    process.terminate()


if __name__ == "__main__":
    main()
