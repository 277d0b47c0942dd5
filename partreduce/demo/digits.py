"""The demonstration's task: scikit-learn's handwritten digits and a small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.extras import require

if TYPE_CHECKING:
    import torch

TEST_SHARE = 5


@dataclass(frozen=True, slots=True)
class Digits:
    """Images (count, 1, 8, 8) in 0..1 and labels (count,), split once and for all."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits() -> Digits:
    """The 1,797 digits that come with scikit-learn: four fifths to train on, one fifth to test."""
    require("sklearn", purpose="the demonstration's data")
    import torch
    from sklearn.datasets import load_digits as bundled

    data = bundled()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target[order], dtype=torch.int64)
    cut = len(order) - len(order) // TEST_SHARE
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


def make_model(seed: int = 0, width: int = 16) -> torch.nn.Module:
    """Two convolutions and two dense layers; 71,754 parameters at the default width."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
