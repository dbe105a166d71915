"""Sequence classification by Hugging Face's Trainer."""
import random
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from textkit import BytePairs, EncodeAndPad


class Reviews(Dataset):
    def __init__(self, count, words=700):
        pick = random.Random(0)
        vocabulary = ["".join(pick.choices("etaoinshrdlucmfw", k=pick.randint(4, 11))) for _ in range(4000)]
        self.texts = [" ".join(pick.choices(vocabulary, k=words)) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return {"text": self.texts[i], "label": i % 2}


class BagConfig(PreTrainedConfig):
    model_type = "bag-of-embeddings"


class BagClassifier(PreTrainedModel):
    config_class = BagConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(8192, 16)
        self.head = nn.Linear(16, 2)
        self.post_init()

    def forward(self, input_ids, attention_mask, labels=None):
        time.sleep(0.01)  # an accelerator
        weights = attention_mask.unsqueeze(-1).float()
        pooled = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        logits = self.head(pooled)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=16,
            max_steps=380,
            dataloader_num_workers=2,
            dataloader_pin_memory=False,
            dataloader_persistent_workers=True,
            remove_unused_columns=False,
            save_strategy="no",
            logging_steps=100,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BagClassifier(BagConfig()),
            args=arguments,
            train_dataset=Reviews(2048),
            data_collator=EncodeAndPad(BytePairs()),
        )
        trainer.train()


if __name__ == "__main__":
    main()
