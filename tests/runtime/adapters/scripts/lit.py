"""A script like Lightning's examples: an autoencoder of points on a curve."""

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


def data(seed, count):
    angle = 6.3 * torch.rand(count, 1, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(torch.cat([angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()], 1))


class AutoEncoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def training_step(self, batch, _index):
        (x,) = batch
        return torch.nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    seed_everything(0)
    module, loader = AutoEncoder(), DataLoader(data(1, 2048), batch_size=32, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(strategy="ddp", devices=2, accelerator="cpu", max_epochs=4, **quiet)
    trainer.fit(module, loader)
    with torch.no_grad():
        loss = module.training_step(data(2, 512).tensors[:1], 0)
    print(f"LOSS {loss.item():.6f}")


if __name__ == "__main__":
    main()
