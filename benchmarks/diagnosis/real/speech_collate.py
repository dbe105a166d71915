import argparse
import json
import time
import wave
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class SpeechDataset(Dataset):
    def __init__(self, manifest):
        self.root = Path(manifest).parent
        lines = Path(manifest).read_text(encoding="utf-8").splitlines()
        self.items = [json.loads(line) for line in lines]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        with wave.open(str(self.root / item["audio"])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return torch.from_numpy(samples.astype(np.float32) / 32768), torch.tensor(item["label"])


class Collate:
    def __init__(self, features, n_fft=1024, hop=60, n_mels=40):
        self.features, self.n_fft, self.hop, self.n_mels = features, n_fft, hop, n_mels
        self.window = torch.hann_window(n_fft)
        self.filters = self.mel_filters()

    def mel_filters(self, rate=16_000):
        top = 2595 * np.log10(1 + rate / 2 / 700)
        mels = np.linspace(0, top, self.n_mels + 2)
        edges = (700 * (10 ** (mels / 2595) - 1)) / rate * self.n_fft
        bins = np.arange(self.n_fft // 2 + 1)
        rising = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
        return torch.tensor(np.clip(np.minimum(rising, falling), 0, None), dtype=torch.float32)

    def log_mel(self, waveforms):
        frames = waveforms.unfold(1, self.n_fft, self.hop) * self.window
        power = torch.fft.rfft(frames).abs().square()
        return torch.log(power @ self.filters + 1e-6)

    def __call__(self, batch):
        waveforms = pad_sequence([waveform for waveform, _ in batch], batch_first=True)
        labels = pad_sequence([label for _, label in batch], batch_first=True)
        lengths = torch.tensor([len(waveform) for waveform, _ in batch])
        if self.features == "mel":
            inputs = self.log_mel(waveforms)
            inputs = (inputs - inputs.mean(1, keepdim=True)) / (inputs.std(1, keepdim=True) + 1e-5)
        else:
            inputs = waveforms.unfold(1, 400, 400)
        return inputs, lengths, labels


class Recognizer(nn.Module):
    def __init__(self, vocabulary=28):
        super().__init__()
        self.project = nn.LazyLinear(32)
        self.output = nn.Linear(32, vocabulary)

    def forward(self, inputs):
        return self.output(torch.relu(self.project(inputs[:, ::16])))


def train(model, loader, optimizer, epochs, device):
    started = time.time()
    utterances = 0
    for epoch in range(epochs):
        for inputs, _, labels in loader:
            emissions = model(inputs.to(device)).mean(1)
            loss = nn.functional.cross_entropy(emissions, labels[:, 0].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            utterances += len(labels)
        print(f"epoch {epoch}: loss={loss.item():.3f}", flush=True)
    return utterances / (time.time() - started)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--features", choices=["mel", "raw"], default="mel")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = SpeechDataset(args.manifest)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        collate_fn=Collate(args.features),
        persistent_workers=True,
    )
    recognizer = Recognizer()
    recognizer(torch.zeros(1, 16, 40 if args.features == "mel" else 400))
    model = Accelerated(recognizer, step_ms=12).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"{train(model, loader, optimizer, args.epochs, device):.1f} utterances/s")


if __name__ == "__main__":
    main()
