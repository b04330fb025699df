"""Everything that a CUDA-only script asks for; on the CPU it has to run to its end."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl", device_id=device)
torch.cuda.manual_seed_all(0)
torch.set_default_device("cuda")
torch.set_default_device(None)


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(x.shape)


shifted = torch.jit.script(_shifted)


with torch.device("cuda"):
    inner = torch.zeros(2)
places = [
    inner,
    torch.zeros(2, device="cuda"),
    torch.ones(2).to(rank),
    torch.ones(2).to("cuda:0", torch.float64),
    torch.ones(2).to(device=device, non_blocking=True),
    torch.ones(2).cuda(rank),
    torch.ones(2).type("torch.cuda.FloatTensor"),
    torch.ones(2).new_full((2,), 1.0, device=device),
    torch.cuda.FloatTensor([1.0]),
    torch.randn(2, device=device, generator=torch.Generator(device=device)),
    torch.empty(2, pin_memory=True).pin_memory(),
    shifted(torch.ones(2)),
]
assert all(tensor.device.type == "cpu" for tensor in places)
assert isinstance(torch.Generator(), torch.Generator)
assert torch.ones(2, dtype=torch.int64).to(torch.float32).dtype == torch.float32
assert torch.cuda.current_device() == rank

model = nn.Sequential(nn.Linear(2, 2, device="cuda"), nn.Linear(2, 1)).cuda()
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(model, nn.BatchNorm1d(1)))
model = DDP(model, device_ids=[rank], output_device=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()), torch.autocast("cuda"):
        loss = model(torch.randn(4, 2, device=device)).pow(2).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0
assert torch.cuda.max_memory_allocated() == 0
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
    print("saved", torch.cuda.get_device_name(0), flush=True)
dist.barrier(device_ids=[rank])
for location in ("cuda", {"cuda:0": f"cuda:{rank}"}, lambda storage, _: storage.cuda(rank)):
    model.module.load_state_dict(torch.load("model.pt", map_location=location))
dist.destroy_process_group()
