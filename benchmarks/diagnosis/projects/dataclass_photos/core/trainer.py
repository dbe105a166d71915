import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from utils.meters import Mean


class Trainer:
    def __init__(self, cfg, model, train_set, val_set):
        self.cfg, self.model = cfg, model
        self.optimizer = torch.optim.Adam(model.parameters(), cfg.lr)
        self.train_loader = self._loader(train_set, cfg.batch, cfg.workers, train=True)
        self.val_loader = self._loader(val_set, cfg.val_batch, cfg.val_workers, train=False)
        self.best = 0.0
        self.seen = 0

    @staticmethod
    def _loader(dataset, batch, workers, train):
        return DataLoader(
            dataset,
            batch_size=batch,
            shuffle=train,
            drop_last=train,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def fit(self):
        started = time.time()
        for epoch in range(self.cfg.epochs):
            loss = self.train_epoch()
            line = f"epoch {epoch:2d}  loss {loss:.4f}"
            if self.cfg.eval_every and (epoch + 1) % self.cfg.eval_every == 0:
                accuracy = self.evaluate()
                self.best = max(self.best, accuracy)
                line += f"  accuracy {accuracy:.3f}  best {self.best:.3f}"
            print(line, flush=True)
        return self.seen / (time.time() - started)

    def train_epoch(self):
        self.model.train()
        mean = Mean()
        for photos, labels in self.train_loader:
            loss = F.cross_entropy(self.model(photos), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            mean.add(loss.item(), len(labels))
            self.seen += len(labels)
        return mean.value

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        mean = Mean()
        for views, labels in self.val_loader:
            b, v = views.shape[:2]
            probabilities = self.model(views.flatten(0, 1)).softmax(1).view(b, v, -1).mean(1)
            mean.add((probabilities.argmax(1) == labels).float().mean().item(), b)
        return mean.value
