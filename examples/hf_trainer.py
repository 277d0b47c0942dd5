"""Hugging Face Trainer: one callback replaces DDP by the schedule. Needs transformers.

    $ partreduce design 1x2 --build "local-sgd(every=4)" -o schedule.json
    $ partreduce run --schedule schedule.json examples/hf_trainer.py schedule.json
    [0] loss of the mean model on new sentences: 0.0028

A small BERT classifies sentences of random words by their first word, so that nothing has to be downloaded.
"""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from partreduce.transformers import ScheduleCallback

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()


def sentences(seed, count):
    words = torch.randint(1, 64, (count, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": sentence, "labels": int(sentence[0] >= 32)} for sentence in words]


set_seed(0)
config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
model = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder, num_train_epochs=args.epochs, per_device_train_batch_size=16, learning_rate=3e-3, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=sentences(1, 1024), eval_dataset=sentences(2, 256))
    trainer.add_callback(ScheduleCallback(trainer, args.schedule))  # the only line for partreduce
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]  # on all workers
    if trainer.is_world_process_zero():
        print(f"loss of the mean model on new sentences: {loss:.4f}")
