"""A script like the Trainer's examples, with a small classifier of synthetic sentences."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


def data(seed, count):
    """Sentences of eight words, labeled by whether the first word is in the second half of the vocabulary."""
    words = torch.randint(1, 64, (count, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": sentence, "labels": int(sentence[0] >= 32)} for sentence in words]


def main():
    set_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)
    train, validation = data(1, 1024), data(2, 256)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            eval_strategy="epoch",
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model, args, train_dataset=train, eval_dataset=validation)
        trainer.train()
        print(f"LOSS {trainer.evaluate()['eval_loss']:.6f}")


if __name__ == "__main__":
    main()
