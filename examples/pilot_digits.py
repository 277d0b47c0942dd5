"""A pilot for the job of train_digits.py: it measures what rarer or delayed averages cost.

partreduce measure examples/pilot_digits.py:pilot --workers 4
torchrun --nproc-per-node 4 -m partreduce measure examples/pilot_digits.py:pilot
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import partreduce

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = partreduce.shard_dataset((torch.tensor(digits.data, dtype=torch.float32) / 16)[order][:1500])
labels = partreduce.shard_dataset(torch.tensor(digits.target)[order][:1500])
data = torch.utils.data.TensorDataset(images, labels)


def pilot(seed: int) -> partreduce.PilotJob:
    """The job of this worker, from the seed alone: parameters, and the order of the batches."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    batches = torch.utils.data.DataLoader(
        data, batch_size=32, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(seed)
    )

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return partreduce.PilotJob(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2), batches=batches, loss=loss
    )
