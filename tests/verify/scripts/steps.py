"""Training steps of some size; rank 0 prints how many milliseconds of CPU time a step took."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    size = args.batch * 20 * dist.get_world_size()
    data = TensorDataset(torch.randn(size, args.width), torch.randint(0, 10, (size,)))
    loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data))
    layers = [layer for _ in range(3) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    model = DDP(nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(args.width, 10)))
    optimizer = torch.optim.Adam(model.parameters())
    step, begun = 0, 0.0
    for epoch in range(args.steps // 20):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == WARM_UP:
                begun = time.process_time()
    if os.environ["RANK"] == "0":
        print(f"{1e3 * (time.process_time() - begun) / (step - WARM_UP):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
