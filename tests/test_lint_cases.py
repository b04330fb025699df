"""The public cases of DDP faults, each as a small script of its own: what is found, and where nothing is."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source

HEAD = """\
import argparse
import copy
import glob
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)

    def encode(self, x):
        return self.norm(self.body(x))

    def forward(self, x):
        return self.head(self.encode(x))


dist.init_process_group("nccl")
rank, local_rank, world = dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size()
torch.cuda.set_device(local_rank)
train_set = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
test_set = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, 8, sampler=sampler)
net = Net().cuda()
model = DDP(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, epoch):
    sampler.set_epoch(epoch)
    for x, y in train_loader:
        optimizer.zero_grad()
        F.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


"""
TAIL = """
dist.destroy_process_group()
"""

#: what happens, in a script that is right without it -> the rules that report it
CASES: dict[str, tuple[str, set[str]]] = {
    "rank 0 validates through the wrapper, then all wait": (
        """
        for epoch in range(3):
            train(model, epoch)
            if rank == 0:
                model.eval()
                with torch.no_grad():
                    total = sum(model(x.cuda()).sum().item() for x, y in DataLoader(test_set, 8))
            dist.barrier()
        """,
        {"DDP204"},
    ),
    "a barrier under a test of the rank": (
        """
        train(model, 0)
        if rank == 0:
            dist.barrier()
        """,
        {"DDP512"},
    ),
    "a reduction that rank 0 alone makes": (
        """
        def report(value):
            value = value.clone()
            dist.all_reduce(value)
            return value / world

        train(model, 0)
        if rank == 0:
            print(report(torch.ones(1).cuda()))
        """,
        {"DDP512"},
    ),
    "parts of the model are called by themselves": (
        """
        for x, y in train_loader:
            sampler.set_epoch(0)
            out = model.module.head(model.module.encode(x.cuda()))
            F.mse_loss(out, y.cuda()).backward()
            optimizer.step()
        """,
        {"DDP205"},
    ),
    "no_sync off by one": (
        """
        k = 4
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(train_loader):
                context = model.no_sync if i % k else nullcontext
                with context():
                    loss = F.mse_loss(model(x.cuda()), y.cuda())
                    loss.backward()
                if (i + 1) % k == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        {"DDP215"},
    ),
    "no_sync around the backward only": (
        """
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(train_loader):
                loss = F.mse_loss(model(x.cuda()), y.cuda())
                if (i + 1) % 4:
                    with model.no_sync():
                        loss.backward()
                else:
                    loss.backward()
                    optimizer.step()
        """,
        {"DDP215"},
    ),
    "the last checkpoint is guarded, the best one is not": (
        """
        class Keeper:
            def last(self, state):
                if dist.get_rank() == 0:
                    torch.save(state, "last.pt")

            def best(self, state):
                torch.save(state, "best.pt")

        keeper = Keeper()
        for epoch in range(3):
            train(model, epoch)
            keeper.last(net.state_dict())
            keeper.best(net.state_dict())
        """,
        {"DDP401"},
    ),
    "the first rank of each node writes": (
        """
        train(model, 0)
        if local_rank == 0:
            torch.save(net.state_dict(), "/shared/model.pt")
        """,
        {"DDP108"},
    ),
    "a checkpoint is resumed onto GPU 0": (
        """
        net.load_state_dict(torch.load("model.pt"))
        train(model, 0)
        """,
        {"DDP105"},
    ),
    "L-BFGS, an early stop": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                loss = F.mse_loss(model(x.cuda()), y.cuda())
                if loss.item() < 0.01:
                    break
                loss.backward()
                optimizer.step()
        """,
        {"DDP506"},
    ),
    "a batch with NaN is left out on one rank": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                loss = F.mse_loss(model(x.cuda()), y.cuda())
                if not torch.isfinite(loss):
                    continue
                loss.backward()
                optimizer.step()
        """,
        {"DDP506"},
    ),
    "a part is unfrozen after some epochs": (
        """
        for epoch in range(8):
            for p in model.module.body.parameters():
                p.requires_grad = epoch >= 4
            train(model, epoch)
        """,
        {"DDP213"},
    ),
    "no sampler at all": (
        """
        for epoch in range(3):
            for x, y in DataLoader(train_set, 8, shuffle=True):
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP301"},
    ),
    "set_epoch is forgotten": (
        """
        loader = DataLoader(train_set, 8, sampler=DistributedSampler(train_set))
        for epoch in range(3):
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP302"},
    ),
    "classes in the order of a set": (
        """
        names = list(set(open("names.txt").read().split()))
        numbers = {name: at for at, name in enumerate(names)}
        train(model, 0)
        """,
        {"DDP307"},
    ),
    "the test set is padded": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False))
        train(model, 0)
        right = torch.zeros(1).cuda()
        with torch.no_grad():
            for x, y in test_loader:
                right += (net(x.cuda()) > y.cuda()).sum()
        dist.all_reduce(right)
        share = right.item() / len(test_set)
        """,
        {"DDP304"},
    ),
    "the accuracy of one shard": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False, drop_last=True))
        train(model, 0)
        right = 0
        with torch.no_grad():
            for x, y in test_loader:
                right += (net(x.cuda()) > y.cuda()).sum().item()
        share = right / len(test_loader.dataset)
        """,
        {"DDP501"},
    ),
    "the loss has parameters of its own": (
        """
        class Margin(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(1, 4))

            def forward(self, out, y):
                return F.mse_loss(out @ self.weight, y.expand(-1, 4))

        criterion = Margin().cuda()
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                criterion(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP201"},
    ),
    "the script chooses its GPUs": (
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        train(model, 0)
        """,
        {"DDP104"},
    ),
    "a random split, unseeded": (
        """
        part, rest = torch.utils.data.random_split(train_set, [48, 16])
        train(model, 0)
        """,
        {"DDP305"},
    ),
    "a run per rank": (
        """
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter("runs/x")
        train(model, 0)
        writer.add_scalar("done", 1, 1)
        """,
        {"DDP402"},
    ),
    "a run directory named by the time": (
        """
        folder = time.strftime("runs/%Y%m%d-%H%M%S")
        os.makedirs(folder, exist_ok=True)
        train(model, 0)
        """,
        {"DDP403"},
    ),
    "read before it is written": (
        """
        train(model, 0)
        if rank == 0:
            torch.save(net.state_dict(), "best.pt")
        net.load_state_dict(torch.load("best.pt", map_location="cpu"))
        """,
        {"DDP404"},
    ),
    "the wrapper is averaged": (
        """
        average = copy.deepcopy(model)
        train(model, 0)
        """,
        {"DDP212"},
    ),
    "a sampler that knows no ranks": (
        """
        draw = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
        for epoch in range(3):
            for x, y in DataLoader(train_set, 8, sampler=draw):
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP301"},
    ),
    "the port is set by hand": (
        """
        os.environ["MASTER_PORT"] = "29500"
        train(model, 0)
        """,
        {"DDP107"},
    ),
    "two forwards, two backwards": (
        """
        for x, y in train_loader:
            sampler.set_epoch(0)
            one, two = model(x.cuda()).mean(), model(-x.cuda()).mean()
            one.backward()
            two.backward()
            optimizer.step()
        """,
        {"DDP207"},
    ),
    "every rank validates a shard of its own length through the wrapper": (
        """
        part = torch.utils.data.Subset(test_set, range(rank, len(test_set), world))
        for epoch in range(3):
            train(model, epoch)
            model.eval()
            for x, y in DataLoader(part, 8):
                model(x.cuda()).sum().item()
        """,
        {"DDP204"},
    ),
    "all that is wrapped is frozen": (
        """
        teacher = Net().cuda().requires_grad_(False)
        teacher = DDP(teacher, device_ids=[local_rank])
        for epoch in range(3):
            train(model, epoch)
        torch.save(net.state_dict(), "last.pt")
        """,
        {"DDP220", "DDP401"},
    ),
    "a penalty is backpropagated alone": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                x = x.cuda().requires_grad_(True)
                (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
                penalty = slope.pow(2).sum(1).mean()
                optimizer.zero_grad()
                penalty.backward()
                optimizer.step()
        """,
        {"DDP221"},
    ),
    "the optimizer steps in a hook": (
        """
        def step(parameter):
            parameter.data.sub_(0.1 * parameter.grad)
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        train(model, 0)
        """,
        {"DDP221"},
    ),
    "L-BFGS goes by the loss of one rank": (
        """
        search = torch.optim.LBFGS(model.parameters())
        for x, y in train_loader:
            sampler.set_epoch(0)

            def closure():
                search.zero_grad()
                loss = F.mse_loss(model(x.cuda()), y.cuda())
                loss.backward()
                return loss

            search.step(closure)
        """,
        {"DDP508"},
    ),
    "each rank feeds its own value to a stopper": (
        """
        class Stopper:
            def __init__(self, patience):
                self.patience, self.worse, self.best, self.stop = patience, 0, None, False

            def __call__(self, value):
                if self.best is None or value < self.best:
                    self.best, self.worse = value, 0
                else:
                    self.worse += 1
                    if self.worse >= self.patience:
                        self.stop = True

        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False, drop_last=True))
        stopper = Stopper(2)
        for epoch in range(3):
            train(model, epoch)
            total = 0.0
            with torch.no_grad():
                for x, y in test_loader:
                    total += F.mse_loss(net(x.cuda()), y.cuda()).item()
            stopper(total / len(test_loader))
            if stopper.stop:
                break
        """,
        {"DDP506"},
    ),
    "the reduced loss is for the log, the schedule takes the local one": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False, drop_last=True))
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

        def evaluate():
            total = 0.0
            with torch.no_grad():
                for x, y in test_loader:
                    total += F.mse_loss(net(x.cuda()), y.cuda()).item()
            return total / len(test_loader)

        for epoch in range(3):
            train(model, epoch)
            value = evaluate()
            shared = torch.tensor(value).cuda()
            dist.all_reduce(shared)
            if rank == 0:
                print(shared.item() / world)
            plateau.step(value)
        """,
        {"DDP506"},
    ),
    "the best checkpoint is chosen by a meter of one shard": (
        """
        class Meter:
            def __init__(self):
                self.sum, self.count, self.avg = 0, 0, 0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n
                self.avg = self.sum / self.count

        def validate(loader):
            meter = Meter()
            with torch.no_grad():
                for x, y in loader:
                    meter.update((net(x.cuda()) > y.cuda()).float().mean().item(), len(x))
            return meter.avg

        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False, drop_last=True))
        best = 0
        for epoch in range(3):
            train(model, epoch)
            share = validate(test_loader)
            is_best = share > best
            best = max(share, best)
            if rank == 0 and is_best:
                torch.save(net.state_dict(), "best.pt")
        """,
        {"DDP506"},
    ),
    "a part is asked of the wrapper, to be thawed": (
        """
        for epoch in range(8):
            for p in model.body.parameters():
                p.requires_grad = epoch >= 4
            train(model, epoch)
        """,
        {"DDP202"},
    ),
    "set_epoch is commented out, and there is no sampler": (
        """
        loader = DataLoader(train_set, 8, shuffle=True)
        for epoch in range(3):
            # loader.batch_sampler.set_epoch(epoch)
            for x, y in loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP301"},
    ),
    "buffers are registered in the order of a set": (
        """
        class Book(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 1)
                for name in set(open("names.txt").read().split()):
                    self.register_buffer(name, torch.zeros(1))

            def forward(self, x):
                return self.layer(x)

        train(DDP(Book().cuda(), device_ids=[local_rank]), 0)
        """,
        {"DDP307"},
    ),
    "a hash is an id": (
        """
        words = open("names.txt").read().split()
        ids = [hash(word) % 64 for word in words]
        train(model, 0)
        """,
        {"DDP307"},
    ),
    "the test set is padded, and shuffled": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set))
        train(model, 0)
        right = torch.zeros(1).cuda()
        with torch.no_grad():
            for x, y in test_loader:
                right += (net(x.cuda()) > y.cuda()).sum()
        dist.all_reduce(right)
        """,
        {"DDP304"},
    ),
    "an index of the GPUs that the script has hidden": (
        """
        gpus = os.environ.get("GPUS", "2,3").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        torch.cuda.set_device(int(gpus[local_rank]))
        train(model, 0)
        """,
        {"DDP104"},
    ),
    "shards of unequal length": (
        """
        size = -(-len(train_set) // world)
        part = torch.utils.data.Subset(train_set, range(rank, len(train_set), world))
        for epoch in range(3):
            for x, y in DataLoader(part, 8, shuffle=True):
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        {"DDP312"},
    ),
    "slices of the next larger number": (
        """
        import math

        size = math.ceil(len(train_set) / world)
        rows = torch.randn(65, 8)[rank * size : (rank + 1) * size]
        for epoch in range(3):
            for x in DataLoader(rows, 8, shuffle=True):
                model(x.cuda()).mean().backward()
                optimizer.step()
        """,
        {"DDP312"},
    ),
    "steps by hand": (
        """
        steps = 3 * (len(train_set) // 8)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
                schedule.step()
        """,
        {"DDP507"},
    ),
    "two forwards of a model with BatchNorm before one backward": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                loss = F.mse_loss(model(x.cuda()), y.cuda()) + F.mse_loss(model(-x.cuda()), y.cuda())
                loss.backward()
                optimizer.step()
        """,
        {"DDP207"},
    ),
    "a layer is made and never called": (
        """
        class Spare(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.spare = nn.Linear(8, 1), nn.Linear(8, 1)

            def forward(self, x):
                return self.used(x)

        model = DDP(Spare().cuda(), device_ids=[local_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, 0)
        """,
        {"DDP220"},
    ),
    # -- nothing is wrong ------------------------------------------------------------------------------------------
    "right as it is": ("for epoch in range(3):\n    train(model, epoch)", set()),
    "a generator and a discriminator in turns": (
        """
        critic = DDP(nn.Linear(1, 1).cuda(), device_ids=[local_rank])
        judge = torch.optim.SGD(critic.parameters(), lr=0.1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                made = model(x.cuda())
                judge.zero_grad()
                critic(y.cuda()).mean().backward()
                critic(made.detach()).mean().backward()
                judge.step()
                optimizer.zero_grad()
                critic(made).mean().backward()
                optimizer.step()
        """,
        set(),
    ),
    "the module generates": (
        """
        train(model, 0)
        if rank == 0:
            with torch.no_grad():
                made = model.module.encode(torch.randn(2, 8).cuda())
        """,
        set(),
    ),
    "a regulariser of the module in the same loss": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                loss = F.mse_loss(model(x.cuda()), y.cuda()) + model.module.head.weight.pow(2).sum()
                loss.backward()
                optimizer.step()
        """,
        set(),
    ),
    "the whole critic is frozen": (
        """
        critic = DDP(nn.Linear(1, 1).cuda(), device_ids=[local_rank])
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                for p in critic.parameters():
                    p.requires_grad = False
                critic(model(x.cuda())).mean().backward()
                optimizer.step()
        """,
        set(),
    ),
    "the state of the bare name": (
        'train(model, 0)\nif rank == 0:\n    torch.save(net.state_dict(), "model.pt")',
        set(),
    ),
    "sorted": ('names = sorted(set(glob.glob("data/*")))\ntrain(model, 0)', set()),
    "rank 0 prints what was reduced": (
        """
        train(model, 0)
        total = torch.ones(1).cuda()
        dist.all_reduce(total)
        if rank == 0:
            print(total.item())
        """,
        set(),
    ),
    "a helper knows the main process": (
        """
        def is_main_process():
            return dist.get_rank() == 0

        def save_on_master(*args):
            if is_main_process():
                torch.save(*args)

        train(model, 0)
        save_on_master(net.state_dict(), "model.pt")
        if not is_main_process():
            time.sleep(1)
        else:
            print("done")
        """,
        set(),
    ),
    "a flag says whether there are ranks": (
        """
        ddp = int(os.environ.get("RANK", -1)) != -1
        master = rank == 0 if ddp else True
        train(model, 0)
        if ddp:
            dist.barrier()
        if master:
            print("done")
        """,
        set(),
    ),
    "an evaluation trims what the sampler has padded": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False))
        train(model, 0)
        outs = []
        with torch.no_grad():
            for x, y in test_loader:
                outs.append(net(x.cuda()))
        mine = torch.cat(outs)
        every = [torch.zeros_like(mine) for _ in range(world)]
        dist.all_gather(every, mine)
        every = torch.stack(every, 1).flatten(0, 1)[: len(test_set)]
        """,
        set(),
    ),
    "a scaler skips a step": (
        """
        scaler = torch.amp.GradScaler()
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = F.mse_loss(model(x.cuda()), y.cuda())
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        set(),
    ),
    "more forwards than backwards": (
        """
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                with torch.no_grad():
                    target = model(x.cuda())
                F.mse_loss(model(x.cuda()), y.cuda() + 0 * target).backward()
                optimizer.step()
        """,
        set(),
    ),
    "tied weights": (
        """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
                self.two.weight = self.one.weight

            def forward(self, x):
                return self.two(self.one(x))

        model = DDP(Tied().cuda(), device_ids=[local_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, 0)
        """,
        set(),
    ),
    "a hidden state is carried, detached": (
        """
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell, self.out = nn.GRUCell(8, 8), nn.Linear(8, 1)

            def forward(self, x, state):
                state = self.cell(x, state)
                return self.out(state), state

        model = DDP(Cell().cuda(), device_ids=[local_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = torch.zeros(8, 8).cuda()
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                out, state = model(x.cuda(), state.detach())
                F.mse_loss(out, y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "ranks that agree on the value decide alike": (
        """
        test_loader = DataLoader(test_set, 8, sampler=DistributedSampler(test_set, shuffle=False, drop_last=True))
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

        def evaluate():
            total = torch.zeros(1).cuda()
            with torch.no_grad():
                for x, y in test_loader:
                    total += F.mse_loss(net(x.cuda()), y.cuda())
            dist.all_reduce(total)
            return total.item() / len(test_loader)

        best, worse = 1e9, 0
        for epoch in range(3):
            train(model, epoch)
            value = evaluate()
            plateau.step(value)
            if value < best:
                best, worse = value, 0
                if rank == 0:
                    torch.save(net.state_dict(), "best.pt")
            else:
                worse += 1
            if worse > 2:
                break
        """,
        set(),
    ),
    "every rank validates the whole set, and stops by it": (
        """
        best = 1e9
        for epoch in range(3):
            train(model, epoch)
            total = 0.0
            with torch.no_grad():
                for x, y in DataLoader(test_set, 8):
                    total += F.mse_loss(net(x.cuda()), y.cuda()).item()
            if total >= best:
                break
            best = total
        """,
        set(),
    ),
    "shards that are cut to one length": (
        """
        even = len(train_set) // world * world
        part = torch.utils.data.Subset(train_set, range(rank, even, world))
        for epoch in range(3):
            for x, y in DataLoader(part, 8, shuffle=True):
                F.mse_loss(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        set(),
    ),
    "steps of the sharded loader": (
        """
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * len(train_loader))
        train(model, 0)
        schedule.step()
        """,
        set(),
    ),
    "a model finds the size of its layers by a forward of its own": (
        """
        class Sized(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.scale = nn.Linear(8, 1), 1.0
                self.scale = 1 / (1 + self.forward(torch.ones(2, 8)).abs().mean())

            def forward(self, x):
                return self.body(x) * self.scale

        model = DDP(Sized().cuda(), device_ids=[local_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, 0)
        """,
        set(),
    ),
    "an attribute lives on the wrapper": (
        """
        model.settings = {"gain": 2.0}
        train(model, 0)
        if rank == 0:
            print(model.settings["gain"])
        """,
        set(),
    ),
    "an attribute is asked for first": (
        """
        train(model, 0)
        if hasattr(model, "settings") and model.settings:
            time.sleep(1)
        """,
        set(),
    ),
    "a helper says whether there is a wrapper": (
        """
        def is_parallel(net):
            return type(net) is DDP

        train(model, 0)
        head = model.module.head if is_parallel(model) else model.head
        """,
        set(),
    ),
    "a listing whose order nobody takes": (
        """
        names = [name for name in os.listdir("data") if name.endswith(".pt")]
        names.sort()
        kept = [name for name in os.listdir("kept") if name.endswith(".pt")]
        newest = max(kept) if kept else None
        train(model, 0)
        """,
        set(),
    ),
    "the head begins at zero on every rank": (
        """
        nn.init.zeros_(model.module.head.weight)
        train(model, 0)
        """,
        set(),
    ),
    "a search that is for one process": (
        """
        def search(local_rank):
            assert local_rank == -1, "one process only"
            with open("found.txt", "a") as log:
                log.write("1")

        train(model, 0)
        if os.environ.get("SEARCH"):
            search(int(os.environ.get("LOCAL_RANK", -1)))
        """,
        set(),
    ),
    "steps are counted beside the losses": (
        """
        state = {"step": 0, "loss": 0.0}
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in train_loader:
                loss = F.mse_loss(model(x.cuda()), y.cuda())
                loss.backward()
                optimizer.step()
                state["step"] += 1
                state["loss"] += loss.item()
                if state["step"] % 100 == 0 and rank == 0:
                    torch.save(net.state_dict(), "last.pt")
        """,
        set(),
    ),
    "the CPU is chosen, and output goes nowhere": (
        """
        if os.environ.get("CPU"):
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        with open(os.devnull, "w") as nothing:
            train(model, 0)
        """,
        set(),
    ),
    "flags are switched off on the other ranks": (
        """
        class Log:
            def __init__(self, enabled, flags):
                self.flags = flags
                for name, flag in self.flags.items():
                    self.flags[name] = flag and enabled
                if self.flags["file"]:
                    self.file = open("log.txt", "w")

        log = Log(rank == 0, {"file": True})
        train(model, 0)
        """,
        set(),
    ),
    "the epoch is reported in the name of each rank": ('train(model, 0)\nprint(f"[{rank}] done")', set()),
}


#: said of most scripts: how many samples a step takes, and that BatchNorm sees one rank's
REMARKS = ("DDP222", "DDP311")


def found(code: str, *, remarks: bool = False) -> list[str]:
    source = Source(Path("train.py"), f"{HEAD}{dedent(code).strip()}\n{TAIL}".encode())
    problems = check(source, "train.py", Task(Settings(select=("ALL", "DDP311")))).problems
    return [f"{p.code} {p.line}: {p.message}" for p in problems if remarks or p.code not in REMARKS]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    code, rules = CASES[name]
    said = found(code)
    assert {s.split()[0] for s in said} == rules, said


LOOP = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in train_loader:
        F.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
"""
#: what is said by the way -> the rule
SAID = {
    "a batch of 8 per rank, BatchNorm in the model": (LOOP, {"DDP222", "DDP311"}),
    "the learning rate grows with the ranks": (
        f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world)\n{LOOP}",
        {"DDP222"},
    ),
    "a sum": (LOOP.replace("y.cuda())", 'y.cuda(), reduction="sum")'), {"DDP222", "DDP311", "DDP505"}),
    "a sum, times the number of ranks": (
        LOOP.replace(
            "F.mse_loss(model(x.cuda()), y.cuda())", '(F.mse_loss(model(x.cuda()), y.cuda(), reduction="sum") * world)'
        ),
        {"DDP222", "DDP311"},
    ),
    "targets that are left out": (
        LOOP.replace(
            "F.mse_loss(model(x.cuda()), y.cuda())", "F.cross_entropy(model(x.cuda()), y.cuda(), ignore_index=-1)"
        ),
        {"DDP222", "DDP311", "DDP510"},
    ),
    "one seed, and noise": (
        "torch.manual_seed(0)\n" + LOOP.replace("model(x.cuda())", "model(x.cuda() + torch.randn(8, 8).cuda())"),
        {"DDP222", "DDP306", "DDP311"},
    ),
    "a seed per rank, and noise": (
        "torch.manual_seed(rank)\n" + LOOP.replace("model(x.cuda())", "model(x.cuda() + torch.randn(8, 8).cuda())"),
        {"DDP222", "DDP311"},
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_remarks(name: str) -> None:
    code, rules = SAID[name]
    said = found(code, remarks=True)
    assert {s.split()[0] for s in said} == rules, said


LAUNCHED = {
    "a parser that torchrun does not fill": ("args.local_rank", {"DDP108"}),
    "filled by hand": ('int(os.environ["LOCAL_RANK"])', set()),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_local_rank(name: str) -> None:
    text, rules = LAUNCHED[name]
    code = f"""\
import argparse
import os
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
torch.cuda.set_device({text})
dist.init_process_group("nccl")
dist.destroy_process_group()
"""
    problems = check(Source(Path("train.py"), code.encode()), "train.py", Task(Settings())).problems
    assert {p.code for p in problems} == rules


@pytest.mark.parametrize(("early", "rules"), [(True, {"DDP108"}), (False, set())])
def test_a_rank_that_is_asked_for_before_there_is_a_group(early: bool, rules: set[str]) -> None:
    asked = "first = dist.get_rank() if dist.is_initialized() else 0"
    init = 'dist.init_process_group("nccl")'
    code = f"""\
import torch
import torch.distributed as dist
from torchvision.datasets import MNIST

{asked if early else init}
{init if early else asked}
if first == 0:
    MNIST("data", download=True)
dist.barrier()
dist.destroy_process_group()
"""
    problems = check(Source(Path("train.py"), code.encode()), "train.py", Task(Settings())).problems
    assert {p.code for p in problems} == rules


@pytest.mark.parametrize("how", ["mp.spawn(worker, args=(4,), nprocs=4)", "start(worker)"])
def test_spawned_workers_know_their_rank(how: str) -> None:
    code = f"""\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

def worker(rank, world):
    dist.init_process_group("gloo", init_method="tcp://localhost:29500", rank=rank, world_size=world)
    model = DDP(torch.nn.Linear(1, 1))
    if rank == 0:
        print("start")
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()

def start(function):
    for rank in range(4):
        mp.Process(target=function, args=(rank, 4)).start()

if __name__ == "__main__":
    print("spawning")
    {how}
"""
    problems = check(Source(Path("train.py"), code.encode()), "train.py", Task(Settings())).problems
    assert [p.message for p in problems] == []


@pytest.mark.parametrize(
    "code",
    [
        "from accelerate import Accelerator\naccelerator = Accelerator()\nprint('x')\n",
        "import lightning as L\nimport torch.distributed as dist\nL.Trainer(strategy='ddp').fit(None)\nprint('x')\n",
        "from transformers import Trainer\nimport torch.distributed\nTrainer(None).train()\nprint('x')\n",
    ],
)
def test_frameworks_are_left_alone(code: str) -> None:
    assert check(Source(Path("train.py"), code.encode()), "train.py", Task(Settings())).problems == []


def test_a_remark_that_is_true_of_nearly_every_script_is_made_where_it_is_asked_for() -> None:
    source = Source(Path("train.py"), f"{HEAD}{dedent(LOOP).strip()}\n{TAIL}".encode())
    asked = [s for s in found(LOOP, remarks=True) if s.startswith("DDP311")]
    unasked = [p for p in check(source, "train.py", Task(Settings())).problems if p.code == "DDP311"]
    assert (len(asked), unasked) == (1, [])
