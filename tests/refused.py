"""Scripts that are refused, one for each reason: what stands in the sentence, and the script."""

from __future__ import annotations

from textwrap import dedent

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

points = TensorDataset(torch.ones(8, 4))
"""
TAIL = """\
loader = DataLoader(points, batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
"""
STEP = """\
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def text(code: str) -> str:
    """A script as it stands; `HEAD`, `TAIL` and `STEP` on lines of their own stand for those parts."""
    lines = dedent(code).strip("\n").split("\n")
    return "\n".join({"HEAD": HEAD, "TAIL": TAIL, "STEP": STEP}.get(line, line) for line in lines) + "\n"


def loaded(made: str) -> str:
    return text(f"HEAD\n{dedent(made).strip()}\n{TAIL.split(chr(10), 1)[1]}")


def by_hand(body: str, before: str = "data = torch.ones(8, 4)") -> str:
    """A training without a DataLoader."""
    return text(f"HEAD\n{dedent(before).strip()}\nSTEP\n{dedent(body).strip()}")


#: what stands in the sentence -> the script
SEEN = {
    "already distributed (`import torch.distributed`": "import torch.distributed\ntorch.distributed.barrier()\n",
    "which is off: turn it on": text("""
        import os
        from torch.nn.parallel import DistributedDataParallel
        HEAD
        distributed = False
        if distributed:
            torch.distributed.init_process_group("nccl")
        TAIL
        if distributed:
            net = DistributedDataParallel(net)
        """),
    "Fabric(strategy": "import lightning as L\n",
    "mpi4py drives this training (`from mpi4py import MPI`": text("""
        from mpi4py import MPI
        HEAD
        comm = MPI.COMM_WORLD
        TAIL
        """),
    "accelerate drives this training (`tools.Accelerator()`": text("""
        import importlib
        HEAD
        tools = importlib.import_module("accelerate")
        accelerator = tools.Accelerator()
        TAIL
        """),
    "no training loop was found: `Engine()`, of a library, runs it": text("""
        from torchnet.engine import Engine
        HEAD
        STEP
        engine = Engine()
        engine.train(lambda batch: (net(batch[0]).mean(), None), DataLoader(points), 2, optimizer)
        """),
    "Trainer runs the loop (`Trainer(": "import torch\nfrom transformers import Trainer\nTrainer(None).train()\n",
    "a TensorFlow script (tf": "import tensorflow as tf\n",
    "no PyTorch in it, which begins with `print(1)`": "print(1)\n",
    "a JAX script": "import jax\n",
    "reinforcement learning (`import gym`)": "import gym\n" + text("HEAD\nTAIL"),
    "starts training processes of its own (`mp.Process(": text("""
        import torch.multiprocessing as mp
        HEAD
        TAIL
        mp.Process(target=print).start()
        """),
    "only loads and applies a model (inference, `torch.load(": 'import torch\nprint(torch.load("net.pt"))\n',
    "nothing trains in it (`import torch`)": "import torch\nprint(torch.ones(3))\n",
    "`loss.backward()` stands here, but nothing": text("""
        import torch
        def outer():
            def train(loss):
                loss.backward()
        """),
    "more than one GPU by itself": text("""
        HEAD
        gpu = 1
        first, second = nn.Linear(4, 4).cuda(0), nn.Linear(4, 1).to("cuda:1")
        first.label = f"cuda:{gpu}"
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for (x,) in DataLoader(points):
            second(first(x)).mean().backward()
            optimizer.step()
        """),
}
SEEN["`nn.parallel.data_parallel(net, x)` runs the model on several GPUs from one process"] = text(
    "HEAD\nTAIL"
).replace(
    "        net(x).mean()",
    "        out = nn.parallel.data_parallel(net, x) if torch.cuda.device_count() > 1 else net(x)\n        out.mean()",
)
SEEN["would join the process group here (`DataLoader(points, num_workers=2)`)"] = text("""
    import torch
    import torch.multiprocessing
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    points = TensorDataset(torch.ones(8, 4))
    net = nn.Linear(4, 1)
    loader = DataLoader(points, num_workers=2)
    if __name__ == "__main__":
        torch.multiprocessing.set_start_method("spawn")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in loader:
            net(x).mean().backward()
            optimizer.step()
    """)
SEEN["`gap.backward()` trains no nn.Module whose parameters an optimizer has"] = text("""
    import torch
    slope = torch.ones(1, requires_grad=True)
    for x in range(3):
        gap = (slope * x - 2 * x).pow(2).sum()
        gap.backward()
        slope.data -= 0.1 * slope.grad
    """)
VALUES = {
    "`main` trains, but nothing calls it": text(
        "HEAD\ndef main():\n" + "".join(f"    {x}\n" for x in TAIL.split("\n"))
    ),
    "`score` binds arguments to the model": text("""
        import functools
        HEAD
        STEP
        score = functools.partial(net)
        for epoch in range(2):
            for (x,) in DataLoader(points, batch_size=2):
                score(x).mean().backward()
                optimizer.step()
            with torch.no_grad():
                print(score(torch.ones(1, 4)))
        """),
    # -- the loader
    "it has a batch_sampler (`own`) that ddpify could not follow": loaded("""
        from samplers import Own
        own = Own(points)
        loader = DataLoader(points, batch_sampler=own)
        """),
    "it has a sampler (`drawn`) that ddpify could not follow": loaded("""
        from samplers import Balanced
        drawn = Balanced(points)
        loader = DataLoader(points, sampler=drawn)
        """),
    "`flow` is a stream, and `random.shuffle(order)` draws another order on each rank in Walk": loaded("""
        import random
        class Walk(torch.utils.data.IterableDataset):
            def __iter__(self):
                order = list(range(8))
                random.shuffle(order)
                for i in order:
                    yield (torch.full((4,), float(i)),)
        flow = Walk()
        loader = DataLoader(flow)
        """),
    "`pairs` is a stream, and `random.random() < 0.5` leaves other items out on each rank in Some": loaded("""
        import random
        class Some(torch.utils.data.IterableDataset):
            def __iter__(self):
                for i in range(8):
                    if random.random() < 0.5:
                        continue
                    yield (torch.full((4,), float(i)),)
        pairs = torch.utils.data.ChainDataset([Some()])
        loader = DataLoader(pairs)
        """),
    "`train` is a stream, and its `.shuffle()` has no seed": loaded("""
        from datasets import load_dataset
        train = load_dataset("rows", split="train", streaming=True).shuffle()
        loader = DataLoader(train)
        """),
    "makes a training loader and an evaluation loader": loaded("""
        def load(dataset):
            return DataLoader(dataset, 4, shuffle=True)
        loader, test = [load(s) for s in (TensorDataset(torch.ones(8, 4)), TensorDataset(torch.ones(6, 4)))]
        """)
    + "with torch.no_grad():\n    for (x,) in test:\n        print(net(x))\n",
    "`Loader(points)` makes a DataLoader in a way": loaded("""
        class Loader(DataLoader):
            def __init__(self, *rest):
                DataLoader.__init__(self, *rest)
        loader = Loader(points)
        """),
    # -- no loader
    "each step goes on from the `memory`": by_hand(
        """
        memory = torch.zeros(4)
        for i in range(8):
            memory = memory * 0.5 + data[i]
            optimizer.zero_grad()
            net(memory).mean().backward()
            optimizer.step()
        """
    ),
    "come from batchmaker.batches (`batches(8)`)": by_hand(
        """
        from batchmaker import batches
        for x in batches(8):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        """
    ),
    "nothing in the script makes `batches`": by_hand(
        "for x in batches:\n    optimizer.zero_grad()\n    net(x).mean().backward()\n    optimizer.step()\n"
    ),
    "counted by a progress bar, `trange(8)`": by_hand(
        """
        from tqdm import trange
        for i in trange(8):
            optimizer.zero_grad()
            net(data[i]).mean().backward()
            optimizer.step()
        """
    ),
    "stops at a number of this rank's own (`loss < 0.1`": by_hand(
        """
        for i in range(8):
            loss = net(data[i]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss < 0.1:
                break
        """
    ),
    "what is done under `len(x) < 2`": by_hand(
        """
        for x in data.split(3):
            if len(x) < 2:
                continue
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        """
    ),
    "draws from a generator with a seed of its own": by_hand(
        """
        for step in range(8):
            rows = torch.randint(8, (2,), generator=own)
            optimizer.zero_grad()
            net(data[rows]).mean().backward()
            optimizer.step()
        """,
        "data, own = torch.ones(8, 4), torch.Generator().manual_seed(0)",
    ),
    "the batches are cut at `self.at`": by_hand(
        """
        class Batches:
            def __init__(self):
                self.at, self.order = 0, torch.randperm(8)
            def draw(self):
                if self.at >= 8:
                    self.at, self.order = 0, torch.randperm(8)
                rows = self.order[self.at:self.at + 2]
                self.at += 2
                return data[rows]
        batches = Batches()
        for step in range(4):
            x = batches.draw()
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        """
    ),
    "`n + 1 == len(parts)` (line": by_hand(
        """
        for n, x in enumerate(parts):
            net(x).mean().backward()
            if n + 1 == len(parts):
                optimizer.step()
        """,
        "parts = list(torch.ones(8, 4).split(2))",
    ),
    '`random.shuffle(rows["all"])` draws another order': by_hand(
        """
        import random
        rows = {"all": list(range(8))}
        for epoch in range(2):
            random.shuffle(rows["all"])
            for i in rows["all"]:
                optimizer.zero_grad()
                net(data[i]).mean().backward()
                optimizer.step()
        """
    ),
    "`len(data.sampler)` is asked of loaders with different samplers": loaded("""
        from torch.utils.data import SubsetRandomSampler
        def count(data):
            return len(data.sampler)
        first, rest = [0, 1, 2, 3, 4, 5], [6, 7]
        loader = DataLoader(points, sampler=SubsetRandomSampler(first))
        test = DataLoader(points, sampler=SubsetRandomSampler(rest))
        print(count(loader), count(test))
        """)
    + "with torch.no_grad():\n    for (x,) in test:\n        print(net(x))\n",
    "the seed `seed` cannot be named where the model is wrapped": by_hand(
        """
        for step in range(8):
            x = data[torch.randint(8, (2,))]
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        """,
        """
        def fix(seed):
            print("seed", seed)
            torch.manual_seed(seed)
        fix(3)
        data = torch.ones(8, 4)
        """,
    ),
    "could not be followed row by row": by_hand(
        """
        more = torch.rand(8, 4)
        for step in range(8):
            optimizer.zero_grad()
            (net(data).mean() + more.mean()).backward()
            optimizer.step()
        """
    ),
    "is trained without going through the DDP wrapper": text("""
        HEAD
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
            def forward(self, x):
                return self.layers[1](self.layers[0](x))
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for n, (x,) in enumerate(DataLoader(points)):
            (net(x).mean() + net.layers[n % 2](x).mean()).backward()
            optimizer.step()
        """),
    "`a @ a.t()` needs all rows at once": by_hand(
        """
        def alike(a):
            return (a @ a.t()).mean()
        for step in range(8):
            optimizer.zero_grad()
            alike(net(data)).backward()
            optimizer.step()
        """
    ),
    "`flat`, which is used besides, has the entries of all rows in one dimension": by_hand(
        """
        for step in range(8):
            flat = net(data).view(-1)
            loss = flat.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(flat[0])
        """
    ),
    "`turned`, which is used besides, does not begin with the rows": by_hand(
        """
        for step in range(8):
            turned = net(data).transpose(0, 1)
            loss = turned.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(turned[0])
        """
    ),
    "`pair`, which is used besides, is made of several outputs": by_hand(
        """
        for step in range(8):
            pair = net(data), data + 1
            loss = pair[0].pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(pair)
        """
    ),
    "`data.view(8, -1)` fixes the number of rows, and each rank has rows of its own": by_hand(
        """
        for step in range(8):
            loss = net(data.view(8, -1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    ),
    "the loop ends by the loss of one rank's rows (`loss > 0.1`)": by_hand(
        """
        loss = torch.tensor(9.0)
        while loss > 0.1:
            loss = net(data).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    ),
    "`torch.ones(8, 4)`, which it trains on, is not read": by_hand(
        "optimizer.zero_grad()\nnet(torch.ones(8, 4)).mean().backward()\noptimizer.step()\n"
    ),
    # -- the model
    "the loss of `net(x).mean().backward()` could not be traced": text("""
        HEAD
        from nets import make
        net = make("small")
        optimizer = torch.optim.SGD([p for p in net.weights], lr=0.1)
        for (x,) in DataLoader(points):
            net(x).mean().backward()
            optimizer.step()
        """),
    "trains a model that no training forward calls": text("""
        HEAD
        net, other = nn.Linear(4, 1), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
        for (x,) in DataLoader(points):
            net(x).mean().backward()
            optimizer.step()
        """),
    "trains parameters that belong to no model": text("""
        HEAD
        net, scales = nn.Linear(4, 1), [nn.Parameter(torch.ones(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([*net.parameters(), *scales], lr=0.1)
        for (x,) in DataLoader(points):
            (net(x) * scales[0] * scales[1]).mean().backward()
            optimizer.step()
        """),
    "trains a part of the model by itself": text("""
        HEAD
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
            def forward(self, x):
                return self.layers[1](self.layers[0](x))
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for n, (x,) in enumerate(DataLoader(points)):
            net.layers[n % 2](x).mean().backward()
            optimizer.step()
        """),
    "trains no more than `layers.0` of the model": text("""
        HEAD
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
            def forward(self, x):
                return self.layers[1](self.layers[0](x))
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in DataLoader(points):
            net.layers[0](x).mean().backward()
            net.layers[1](net.layers[0](x)).mean().backward()
            optimizer.step()
        """),
    "trains itself in `fit`, which is called in a loop": text("""
        HEAD
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 1)
                self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            def forward(self, x):
                return self.layer(x)
            def fit(self, data):
                for (x,) in data:
                    self(x).mean().backward()
                    self.optimizer.step()
        net, loader = Net(), DataLoader(points)
        for epoch in range(3):
            net.fit(loader)
        """),
    "every epoch makes `model = model.half()` anew, and would wrap it anew": text("""
        HEAD
        def train_epoch(model, data, optimizer):
            model = model.half()
            for (x,) in data:
                optimizer.zero_grad()
                model(x.half()).mean().backward()
                optimizer.step()
        STEP
        loader = DataLoader(points)
        for epoch in range(3):
            train_epoch(net, loader, optimizer)
        """),
    "is made and trained in one statement": text("""
        HEAD
        def load():
            return DataLoader(points)
        def train(data, net):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in data:
                net(x).mean().backward()
                optimizer.step()
        train(load(), nn.Linear(4, 1))
        """),
    "through *args or **kwargs": text("""
        HEAD
        def train(data, net):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in data:
                net(x).mean().backward()
                optimizer.step()
        net = nn.Linear(4, 1)
        both = [DataLoader(points)]
        both += [net]
        train(*both)
        """),
    "gets to its device only behind the place where it is wrapped": text("""
        HEAD
        def train(net, optimizer):
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            net.to(device)
            for (x,) in DataLoader(points):
                net(x.to(device)).mean().backward()
                optimizer.step()
        STEP
        for epoch in range(2):
            train(net, optimizer)
        """),
    "moves a wrapped model that is trained on": text("HEAD\nTAIL").replace(
        "        net(x).mean()", "        net.double()\n        net(x.double()).mean()"
    ),
    "draws weights of the model anew behind the wrap, in each step": text("HEAD\nTAIL").replace(
        "        net(x).mean()", "        net.reset_parameters()\n        net(x).mean()"
    ),
    "is the second backward through": text("""
        HEAD
        net, head = nn.Linear(4, 4), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
        for (x,) in DataLoader(points):
            out = net(x)
            head(out).mean().backward(retain_graph=True)
            out.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """),
}
