"""Lightning: one strategy object replaces DDP by the schedule. Needs lightning.

$ partreduce design 1x2 --build "local-sgd(every=4)" -o schedule.json
$ partreduce run --schedule schedule.json examples/lightning_strategy.py schedule.json
[0] test accuracy of the mean model 0.865
"""

import argparse

import torch
from lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from partreduce.lightning import ScheduleStrategy

parser = argparse.ArgumentParser()
parser.add_argument("schedule")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()


class Digits(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _index):
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


seed_everything(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=16, shuffle=True)
module = Digits()
trainer = Trainer(
    strategy=ScheduleStrategy(args.schedule),  # the only line for partreduce
    devices=2, accelerator="cpu", max_epochs=args.epochs,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, loader)
with torch.no_grad():  # after fit() every worker holds the mean of all models
    accuracy = (module.model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
if trainer.is_global_zero:
    print(f"test accuracy of the mean model {accuracy:.3f}")
