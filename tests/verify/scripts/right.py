"""A small training script that keeps the contract; the tests break it in one place at a time."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup_distributed() -> torch.device:
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, **alone)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", **alone)
    return device


def is_main_process() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    device = setup_distributed()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    model = DDP(nn.Linear(4, 3).to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        if is_main_process():
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    if is_main_process():
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
