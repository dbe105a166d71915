import gzip
import hashlib
import io

import torch


def save_checkpoint(state, path, level):
    """Writes the state compressed; the digest goes into the next checkpoint's meta."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    raw = buffer.getvalue()
    digest = hashlib.sha256(raw).hexdigest()
    packed = gzip.compress(raw, compresslevel=level)
    with open(path, "wb") as f:
        f.write(packed)
    return digest
