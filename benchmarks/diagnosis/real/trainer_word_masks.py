import json
import random
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
    masked_units: str = field(default="words", metadata={"help": "words, or tokens"})
    max_seq_length: int = field(default=192)


class Reviews(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.encodings = [tokenizer(text, truncation=True, max_length=max_length) for text in texts]
        self.words = [encoding.word_ids() for encoding in self.encodings]

    def __len__(self):
        return len(self.encodings)

    def __getitem__(self, index):
        return {"input_ids": self.encodings[index]["input_ids"], "word_ids": self.words[index]}


class MaskCollator:
    def __init__(self, tokenizer, arguments):
        self.tokenizer, self.arguments = tokenizer, arguments

    def choose_words(self, word_ids):
        groups = []
        for position, word in enumerate(word_ids):
            for group in groups:
                if group[0] == word:
                    group[1].append(position)
                    break
            else:
                groups.append((word, [position]))
        random.shuffle(groups)
        wanted = max(1, round(len(word_ids) * self.arguments.mlm_probability))
        chosen = []
        for _, positions in groups:
            if len(chosen) >= wanted:
                break
            chosen.extend(positions)
        return chosen

    def __call__(self, features):
        batch = self.tokenizer.pad(
            {"input_ids": [feature["input_ids"] for feature in features]}, return_tensors="pt"
        )
        masked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        if self.arguments.masked_units == "words":
            for row, feature in enumerate(features):
                masked[row, self.choose_words(feature["word_ids"])] = True
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
        self.net = Accelerated(net, step_ms=25)

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
            per_device_train_batch_size=24,
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
