"""Spoken digits: synthetic two-second utterances in 16-bit WAV files."""
import os

import numpy as np
from scipy.io import wavfile
from torch.utils.data import Dataset

RATE = 16000


def synthesize(root, n_utterances, seconds=2.0, seed=3):
    rng = np.random.default_rng(seed)
    n = int(RATE * seconds)
    t = np.arange(n, dtype=np.float32) / RATE
    envelope = np.hanning(n).astype(np.float32)
    for i in range(n_utterances):
        digit = i % 10
        f0 = 110.0 + 25.0 * digit
        wave = sum(np.sin(2 * np.pi * f0 * h * t, dtype=np.float32) / h for h in (1, 2, 3))
        wave = wave * envelope + rng.normal(0, 0.02, n).astype(np.float32)
        pcm = np.clip(wave * 9000, -32768, 32767).astype(np.int16)
        wavfile.write(os.path.join(root, f"{digit}_{i:05d}.wav"), RATE, pcm)


class WavCorpus(Dataset):
    def __init__(self, root):
        self.root = root
        self.names = sorted(os.listdir(root))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        name = self.names[index]
        _, pcm = wavfile.read(os.path.join(self.root, name))
        return {"wave": pcm.astype(np.float32) / 32768.0, "labels": int(name[0])}
