"""The faults of hand-written DDP scripts that show on a CPU: what each changes in `whole.py`, and what is right.

The numbers are those of the catalogue of pitfalls that the rules of `ddpify lint` were made from. `bad` and `good` are
replacements in the same script: the twin does what the faulty one meant to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FORWARD = "            loss = criterion(model(x), y)\n"
BACKWARD = "            loss.backward()\n"
STEP = "            optimizer.step()\n"
TRAIN = FORWARD + BACKWARD + STEP
LOADER = "    loader = DataLoader(train_set, batch_size=4, sampler=DistributedSampler(train_set))\n"
SET_EPOCH = "        loader.sampler.set_epoch(epoch)\n"
NET = "    net = Net().to(device)\n"
DATA = "    data = TensorDataset("
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
LOOP = "    for epoch in range(EPOCHS):\n"
EVALUATED = "        accuracy = evaluate(model.module, test_set, device)\n"
PRINT = '        if is_main_process():\n            print(f"epoch'
SAVE = '    if is_main_process():\n        torch.save(model.module.state_dict(), "model.pt")\n'
DESTROY = "    dist.destroy_process_group()\n"
BODY = "nn.Sequential(nn.Linear(6, 8), nn.ReLU())"
SEEDED = "    if not is_main_process():\n        torch.manual_seed(SEED + dist.get_rank())\n"
MAIN = "def main():\n"
DATA_OVER_ALL = "    share = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))\n"


@dataclass(frozen=True)
class Fault:
    """`shows` are the checks that may tell of it; one that holds may say it all the same, with `says`.

    With `original`, the ranks agree, and the fault shows only where they are held against `alone.py` (with these
    changes): what they train is another model, or what they print another number.
    """

    number: int
    name: str
    harm: str
    bad: Mapping[str, str]
    good: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    says: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    env_of_twin: Mapping[str, str] | None = None  # the same, if not given
    pretend: bool = False
    hash_seeds: bool = False  # only the real launcher gives each rank its own
    original: Mapping[str, str] | None = None
    original_of_twin: Mapping[str, str] | None = None  # the same, if not given

    @property
    def key(self) -> str:
        return f"{self.number:02}-{self.name}"


ACCUMULATE = (
    "            last = (step + 1) % 2 == 0 or step + 1 == len(loader)\n"
    "            with contextlib.nullcontext() if {} else model.no_sync():\n"
    "                criterion(model(x), y).backward()\n"
    "            if last:\n"
    "                optimizer.step()\n"
    "                optimizer.zero_grad()\n"
)
CONTEXTLIB = {"import os\n": "import contextlib\nimport os\n"}
STREAM = (
    "class Stream(torch.utils.data.IterableDataset):\n"
    "    def __init__(self, data):\n"
    "        self.data = data\n\n"
    "    def __iter__(self):\n"
    "        return (self.data[i] for i in range({}))\n\n\n"
)
STREAMED = {LOADER: "    loader = DataLoader(Stream(train_set), batch_size=5)\n", SET_EPOCH: ""}
CENTRES = (
    "class Centres(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.scale = nn.Parameter(torch.ones(3))\n\n"
    "    def forward(self, out, y):\n"
    "        return nn.functional.cross_entropy(out * self.scale, y)\n\n\n"
)
BOTH = {OPTIMIZER: "    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)\n"}
NOISY = {BODY: BODY[:-1] + ", nn.Dropout(0.5))"}
BATCH_NORM = {BODY: BODY[:-1] + ", nn.BatchNorm1d(8))"}
READ = '    model.module.load_state_dict(torch.load("model.pt"))\n'
FREEZE = "    net.body.requires_grad_(False)\n"
UNFREEZE = "        if epoch == 1:\n            net.body.requires_grad_(True)\n"
EARLY = "def step_early(p):\n    p.data.sub_(0.1 * p.grad)\n\n\n"
HOOKED = "    for p in model.parameters():\n        p.register_post_accumulate_grad_hook(step_early)\n"
PLATEAU = "    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)\n"
DOWNLOAD = '    {}with open("data.bin", "wb") as file:\n        {}file.write(bytes(64))\n'
LABELS = "    labels = {{name: i for i, name in enumerate({})}}\n"
WORDS = 'set("cat dog bird fish horse cow sheep goat".split())'
SAVE_ALONE = '    torch.save(model.state_dict(), "model.pt")\n'
SHUFFLED = "    loader = DataLoader(train_set, batch_size=4, shuffle=True)\n"
HALVED = "{name: value * 0.5 for name, value in net.state_dict().items()}"
PENALTY = {"    def forward": "    def penalty(self):\n        return self.head.weight.pow(2).sum()\n\n    def forward"}
PENALIZED = (
    "            loss = criterion(model(x), y)\n"
    '            if hasattr({0}, "penalty"):\n'
    "                loss = loss + 0.1 * {0}.penalty()\n"
)
GROUPS = (
    "    heads = [p for name, p in {0}.named_parameters() if name.startswith('head.')]\n"
    "    others = [p for name, p in {0}.named_parameters() if not name.startswith('head.')]\n"
    '    groups = [{{"params": heads, "weight_decay": 0.5}}, {{"params": others}}]\n'
    "    optimizer = torch.optim.SGD(groups, lr=0.1)\n"
)
CLOSURE = (
    "            def closure():\n"
    "                optimizer.zero_grad()\n"
    "                loss = criterion(model(x), y)\n"
    "                loss.backward()\n"
    "                return {}\n\n"
    "            optimizer.step(closure)\n"
)
LBFGS = {OPTIMIZER: "    optimizer = torch.optim.LBFGS(model.parameters(), tolerance_change=1e-4)\n"}
MEAN = "torch.tensor(all_reduce_sum(loss.item()) / dist.get_world_size())"
STEPPED = "            optimizer.zero_grad()\n" + TRAIN
GATHER = (
    "    parts = [None] * dist.get_world_size()\n"
    "    dist.all_gather_object(parts, found)\n"
    "    model.train()\n"
    "    return sum({} * y.item() for i, (_, y) in enumerate(data)) / len(data)\n"
)
COUNTED = {
    "    correct = 0\n": "    found = []\n",
    "            correct += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()\n": (
        "            found += model(x.to(device))[:, 0].tolist()\n"
    ),
}
COUNT = "    model.train()\n    return all_reduce_sum(correct) / len(data)\n"
REDUCED = "        total = torch.tensor(loss.item())\n        {}\n        if total.item() < 2.1:\n            break\n"
ZERO = "        seen = 0\n"
TOLD = {"accuracy {accuracy:.3f}": "accuracy {accuracy:.3f} after {seen:.1f} samples"}
SCALED = "            loss = criterion(model(x) * scale, y)\n"
SCALE_TOO = (
    "    scale = nn.Parameter(torch.ones(3, device=device))\n"
    "    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)\n"
)
BY_HAND = "            dist.all_reduce(scale.grad)\n            scale.grad /= dist.get_world_size()\n"
SHARE = "    share = Subset(train_set, range({}))\n    loader = DataLoader(share, batch_size=7, {})\n"
TRIED = (
    "            try:\n"
    "                if y[0] == 0:\n"
    '                    raise RuntimeError("out of memory")\n'
    "                loss = criterion(model(x), y)\n"
    "            except RuntimeError:\n"
    "                continue\n"
)
INDICES = "    loader = DataLoader(train_set, batch_size=4, sampler=torch.utils.data.SubsetRandomSampler(range(20)))\n"
GROWN = "    net.body.append(nn.Linear(8, 8).to(device))\n"
NUDGED = "            for p in net.parameters():\n                p.data.add_(0.01 * torch.randn(p.shape{}))\n"
GENERATOR = "    noise = torch.Generator().manual_seed(SEED)\n"
BUFFERS = "        for name in {}:\n            self.register_buffer(name, torch.tensor(float(len(name))))\n"
MASKED = {"nn.CrossEntropyLoss()": "nn.CrossEntropyLoss(ignore_index=0)"}
NORMALISED = {
    "nn.CrossEntropyLoss()": 'nn.CrossEntropyLoss(ignore_index=0, reduction="sum")',
    FORWARD: "            loss = criterion(model(x), y) * dist.get_world_size() / all_reduce_sum((y != 0).sum())\n",
}
SCHEDULE = "    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS * {})\n"
SCHEDULED = "            scheduler.step()\n"
BRANCH = {
    "        self.head =": "        self.spare = nn.Linear(8, 8)\n        self.head =",
    "        return self.head(self.body(x))": (
        "        h = self.body(x)\n        return self.head(self.spare(h) if x[0, 0] > 0 else h)"
    ),
}
ARGUMENT = (
    "    parser = argparse.ArgumentParser()\n"
    '    parser.add_argument("--local_rank", type=int, default={})\n'
    "    return parser.parse_args().local_rank in (-1, 0)\n"
)
GRADIENTS = (
    "            for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):\n"
    "                p.grad = g\n"
)
SUBSET = (
    "    chosen = Subset(train_set, range(20))\n"
    "    loader = DataLoader(chosen, batch_size=4, sampler=DistributedSampler(chosen))\n"
)
COUNT_ALONE = "    model.train()\n    return correct / len(data)\n"
WEIGHED_ALONE = "    model.train()\n    return sum(found[i] * y.item() for i, (_, y) in enumerate(data)) / len(data)\n"
