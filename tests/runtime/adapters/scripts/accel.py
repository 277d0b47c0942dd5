"""A script like Accelerate's examples of Local SGD, with synthetic data."""

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def data(seed, count):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :4].sum(1, keepdim=True).sin())


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(data(1, 2048), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local_sgd:
        for _ in range(16):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
                    local_sgd.step()
    with torch.no_grad():
        x, y = data(2, 512).tensors
        loss = torch.nn.functional.mse_loss(model(x), y)
    print(f"LOSS {loss.item():.6f}")


if __name__ == "__main__":
    main()
