import functools

import numpy as np
from scipy import signal

RATE = 16000


def perturb_speed(wave, rng):
    up, down = ((9, 10), (1, 1), (11, 10))[int(rng.integers(3))]
    return wave if up == down else signal.resample_poly(wave, up, down)


def reverberate(wave, length, rng):
    decay = np.exp(-np.arange(length) / (0.15 * length))
    rir = rng.standard_normal(length) * decay
    rir[0] = 5.0
    out = signal.fftconvolve(wave, rir / np.abs(rir).sum())[: len(wave)]
    return out + rng.standard_normal(len(out)) * 0.003


@functools.lru_cache(maxsize=4)
def mel_bank(n_mels, n_bins):
    edges = 700 * (10 ** (np.linspace(0, 2840, n_mels + 2) / 2595) - 1)
    bins = edges / (RATE / 2) * (n_bins - 1)
    k = np.arange(n_bins)
    low, mid, high = bins[:-2, None], bins[1:-1, None], bins[2:, None]
    return np.clip(np.minimum((k - low) / (mid - low), (high - k) / (high - mid)), 0, None).T


def log_mel(wave, n_mels):
    _, _, power = signal.spectrogram(wave, RATE, nperseg=400, noverlap=240, nfft=512)
    return np.log(power.T @ mel_bank(n_mels, power.shape[0]) + 1e-10).astype(np.float32)


def spec_augment(mel, rng, n_masks=2):
    mel = mel - mel.mean()
    for _ in range(n_masks):
        t = int(rng.integers(0, len(mel) - 20))
        f = int(rng.integers(0, mel.shape[1] - 8))
        mel[t : t + int(rng.integers(1, 20))] = 0
        mel[:, f : f + int(rng.integers(1, 8))] = 0
    return mel
