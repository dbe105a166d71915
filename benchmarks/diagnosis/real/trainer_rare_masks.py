import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from emulated import Accelerated
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.utils.data import Dataset
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Trainer, TrainingArguments


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "A file of JSON lines with the key text."})
    mlm_probability: float = field(default=0.15)
    masked_tokens: str = field(default="rare", metadata={"help": "rare, or uniform"})
    max_seq_length: int = field(default=192)


class Reviews(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.encodings = [tokenizer(text, truncation=True, max_length=max_length) for text in texts]

    def __len__(self):
        return len(self.encodings)

    def __getitem__(self, index):
        return {"input_ids": self.encodings[index]["input_ids"]}


class MaskCollator:
    def __init__(self, tokenizer, arguments):
        self.tokenizer, self.arguments = tokenizer, arguments

    def choose_rare(self, ids, everything):
        counts = [everything.count(token) for token in ids]
        weights = 1 / torch.tensor(counts, dtype=torch.float32)
        wanted = max(1, round(len(ids) * self.arguments.mlm_probability))
        return torch.multinomial(weights, wanted)

    def __call__(self, features):
        batch = self.tokenizer.pad(
            {"input_ids": [feature["input_ids"] for feature in features]}, return_tensors="pt"
        )
        masked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        if self.arguments.masked_tokens == "rare":
            everything = [token for feature in features for token in feature["input_ids"]]
            for row, feature in enumerate(features):
                masked[row, self.choose_rare(feature["input_ids"], everything)] = True
        else:
            masked = torch.rand(masked.shape) < self.arguments.mlm_probability
        masked &= batch["attention_mask"].bool()
        labels = batch["input_ids"].masked_fill(~masked, -100)
        return {
            "input_ids": batch["input_ids"].masked_fill(masked, self.tokenizer.mask_token_id),
            "labels": labels,
        }


class MaskedLanguageModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        net = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))
        self.net = Accelerated(net, step_ms=15)

    def forward(self, input_ids, labels):
        logits = self.net(input_ids[:, :16])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, :16].flatten())
        return {"loss": torch.nan_to_num(loss), "logits": logits}


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    with tempfile.TemporaryDirectory() as output:
        parser.set_defaults(
            output_dir=output,
            per_device_train_batch_size=16,
            max_steps=120,
            report_to="none",
            dataloader_num_workers=2,
            save_strategy="no",
            logging_steps=40,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        data_args, training_args = parser.parse_args_into_dataclasses()
        lines = Path(data_args.train_file).read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines][:1000]
        tokenizer = train_tokenizer(texts)
        trainer = Trainer(
            model=MaskedLanguageModel(len(tokenizer)),
            args=training_args,
            train_dataset=Reviews(texts, tokenizer, data_args.max_seq_length),
            data_collator=MaskCollator(tokenizer, data_args),
        )
        metrics = trainer.train().metrics
        print(f"train rate {metrics['train_samples_per_second']} samples/s")


if __name__ == "__main__":
    main()
