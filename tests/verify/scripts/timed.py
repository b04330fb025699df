"""A right training script in which one part is slow; the tests ask which part the report names."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

PAUSE = 0.04
BATCH = 4


class Recordings(Dataset):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, size: int, pause: float) -> None:
        self.size, self.pause = size, pause

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.pause)
        return torch.full((8,), i / self.size), i % 3


class Net(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, words: int, pause: float) -> None:
        super().__init__()
        self.pause = pause
        self.head = nn.Linear(8, 3)
        self.words = nn.EmbeddingBag(words, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause)
        return self.head(x) + self.words(torch.zeros(len(x), 1, dtype=torch.long))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", default="")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    def pause(part: str) -> float:
        return PAUSE if args.slow == part else 0.0

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data, held = Recordings(96, pause("loading") / BATCH), Recordings(48, pause("evaluation") / BATCH)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), num_workers=args.workers)
    held_loader = DataLoader(held, batch_size=BATCH)
    net = Net(5_000_000 if args.slow == "exchange" else 8, pause("compute") or pause("evaluation") / 2)
    model = DDP(net)
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(pause("script") or (pause("rank") if os.environ["RANK"] == "1" else 0.0))
            for _ in range(50 if args.slow == "collective" else 0):
                dist.barrier()
        right = 0
        for x, y in held_loader:
            with torch.no_grad():
                right += int((net(x).argmax(1) == y).sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
