"""one_process.py on ranks, as it has to be; the tests break it in one place at a time."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


def is_main_process() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def all_reduce_sum(*values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [value.item() for value in total]


def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    total, right = 0.0, 0.0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += nn.functional.cross_entropy(out, y, reduction="sum").item()
            right += (out.argmax(1) == y).sum().item()
    total, right = all_reduce_sum(total, right)
    return total, right


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
    train_set, val_set = random_split(data, [31, 15])
    loader = DataLoader(train_set, batch_size=4, sampler=DistributedSampler(train_set), num_workers=1)
    val_loader = DataLoader(val_set, batch_size=4, sampler=range(rank, 15, world))
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    model = DDP(model)
    if not is_main_process():
        torch.manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 2 * len(loader)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(x)
            if i == 0 and is_main_process():
                print(f"step {i}: {loss.item():.4f}")
        [total] = all_reduce_sum(total)
        if is_main_process():
            print(f"epoch {epoch}: loss {total / (len(loader.sampler) * world):.4f}")
        val_loss, right = evaluate(model.module, val_loader)
        if is_main_process():
            print(f"held out: loss {val_loss / len(val_set):.5f}, {right:g} of {len(val_set)} right")
    if is_main_process():
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
