"""A script like PyTorch's tutorial on DistributedDataParallel, with synthetic data."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 16


def data(seed, count):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :4].sum(1, keepdim=True).sin())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DDP(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = data(1, 2048)
    sampler = DistributedSampler(train)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(train, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        x, y = data(2, 512).tensors
        loss = torch.nn.functional.mse_loss(model(x), y)
    print(f"LOSS {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
