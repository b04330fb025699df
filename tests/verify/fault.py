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
    """`shows` is the check that tells of it; none where verify alone cannot (the script's numbers are just others)."""

    number: int
    name: str
    harm: str
    bad: Mapping[str, str]
    good: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_of_twin: Mapping[str, str] | None = None  # the same, if not given
    pretend: bool = False
    hash_seeds: bool = False  # only the real launcher gives each rank its own

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
