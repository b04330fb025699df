"""More ways in which projects write DDP that look like a fault and are none, each beside the fault."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source
from tests.test_lint_cases import HEAD, TAIL


def found(code: str, *rules: str) -> set[str]:
    """What lint says of a script that is right without this code, of some rules or of all."""
    source = Source(Path("train.py"), f"{HEAD}{code}\n{TAIL}".encode())
    settings = Settings(select=rules) if rules else Settings(ignore=("DDP222",))
    return {p.code for p in check(source, "train.py", Task(settings)).problems}


TWO_LOADERS = """
class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def make_loader(data, size, rank=-1, plain=False):
    {sampler}
    kind = DataLoader if plain else Endless
    return kind(data, {given}sampler=sampler), data


def validate(net, loader=None):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(net(x.cuda()), y.cuda()).item()
    return total


own, _ = make_loader(train_set, 4, rank=rank)
held = make_loader(test_set, 8, {rank})[0]
for epoch in range(2):
    own.sampler.set_epoch(epoch)
    for x, y in own:
        optimizer.zero_grad()
        F.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    if rank in (-1, 0):
        total = validate(net, loader=held)
"""


@pytest.mark.parametrize("given", ["batch_size=size, ", "size, "])
@pytest.mark.parametrize(
    "sampler",
    [
        "sampler = DistributedSampler(data) if rank != -1 else None",
        "sampler = None\n    if rank >= 0:\n        sampler = DistributedSampler(data)",
    ],
)
@pytest.mark.parametrize("rank", ["rank=-1", "", "rank=rank"])
def test_two_loaders_that_one_function_makes(given: str, sampler: str, rank: str) -> None:
    """By `*args` and `**kwargs` each call hands on its own; -1 for the rank makes no sampler."""
    code = TWO_LOADERS.format(given=given, sampler=sampler, rank=rank)
    assert found(code, "DDP304") == ({"DDP304"} if rank == "rank=rank" else set())


#: what happens, in a script that is right without it -> the rules that report it
CASES: dict[str, tuple[str, set[str]]] = {
    "the bare model is handed to a function": (
        """
        def export(net, path):
            return net.head.weight.shape
        ddp = int(os.environ.get("RANK", -1)) != -1
        twin = Net().cuda()
        if ddp:
            twin = DDP(twin, device_ids=[local_rank])
        raw = twin.module if ddp else twin
        export(raw, "net.bin")
        """,
        set(),
    ),
    "the wrapper is handed to it": (
        """
        def export(net, path):
            return net.head.weight.shape
        ddp = int(os.environ.get("RANK", -1)) != -1
        twin = Net().cuda()
        if ddp:
            twin = DDP(twin, device_ids=[local_rank])
        export(twin, "net.bin")
        """,
        {"DDP202"},
    ),
    "the wrapper's own attributes": (
        "assert len(model.device_ids) == 1 and not model.find_unused_parameters",
        set(),
    ),
    "one flag wraps the model and asks for its layers": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        twin = Net().cuda()
        if args.distributed:
            twin = DDP(twin, device_ids=[local_rank])
        if not args.distributed:
            print(rank, twin.head.weight.shape)
        """,
        set(),
    ),
    "the flag is asked the wrong way round": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        twin = Net().cuda()
        if args.distributed:
            twin = DDP(twin, device_ids=[local_rank])
        if args.distributed:
            print(rank, twin.head.weight.shape)
        """,
        {"DDP202"},
    ),
    "the state of either, as the wrapper is asked": (
        """
        class Solver:
            def __init__(self, net, wrap):
                self.net = net
                if wrap:
                    self.net = DDP(net, device_ids=[local_rank])
            def save(self, state):
                wraps = isinstance(self.net, DDP)
                state["net"] = self.net.module.state_dict() if wraps else self.net.state_dict()
                if rank == 0:
                    torch.save(state, "net.pt")
        solver = Solver(Net().cuda(), world > 1)
        solver.save({"epoch": 3})
        """,
        set(),
    ),
    "another process may have done it, under a lock": (
        """
        import urllib.request
        from filelock import FileLock
        def unpack(path):
            with open(path + ".txt", "w") as f:
                f.write("unpacked")
        with FileLock("data.lock"):
            if not os.path.exists("data.bin"):
                print("it is not there")
                urllib.request.urlretrieve("https://example.org/data.bin", "data.bin")
                unpack("data.bin")
        """,
        set(),
    ),
    "under a lock each does it again": (
        """
        from filelock import FileLock
        with FileLock("data.lock"):
            with open("data.txt", "w") as f:
                f.write("unpacked")
        """,
        {"DDP401"},
    ),
    "a hash of numbers": ("seed = hash((3, world, 5)) & 0xFFFF", set()),
    "a hash of a text among numbers": ("seed = hash((3, 'first', 5)) & 0xFFFF", {"DDP307"}),
    "a loss that the model keeps, without parameters": (
        """
        class Criterion(nn.Module):
            def __init__(self, kinds):
                super().__init__()
                self.kinds = kinds
                self.register_buffer("weight", torch.ones(3))
            def forward(self, y, target):
                return (y - target).abs().mean()
        class Judged(nn.Module):
            def __init__(self, criterion):
                super().__init__()
                self.layer = nn.Linear(8, 1)
                self.criterion = criterion
            def forward(self, x):
                return self.layer(x)
        criterion = Criterion(int(os.environ["KINDS"]))
        judged = DDP(Judged(criterion).cuda(), device_ids=[local_rank])
        optimizer = torch.optim.SGD(judged.parameters(), lr=0.1)
        for x, y in train_loader:
            optimizer.zero_grad()
            criterion(judged(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        set(),
    ),
    "a layer that the model keeps": (
        """
        class Judged(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer
            def forward(self, x):
                return self.layer(x)
        layer = nn.Linear(8, 1).cuda()
        judged = DDP(Judged(layer), device_ids=[local_rank])
        optimizer = torch.optim.SGD(judged.parameters(), lr=0.1)
        for x, y in train_loader:
            optimizer.zero_grad()
            F.mse_loss(layer(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        {"DDP205"},
    ),
    "the state of a schedule": (
        """
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        schedule.load_state_dict(torch.load("schedule.pt"))
        """,
        set(),
    ),
    "the state of an optimizer": ('optimizer.load_state_dict(torch.load("optimizer.pt"))', {"DDP105"}),
    "one of several is made by its name": (
        """
        from torch.utils.checkpoint import checkpoint
        makers = {"linear": nn.Linear, "again": checkpoint}
        made = makers[os.environ["KIND"]](8, 1)
        """,
        set(),
    ),
    "one of one is called by its name": (
        """
        from torch.utils.checkpoint import checkpoint
        calls = {"again": checkpoint}
        made = calls["again"](net, torch.ones(4, 8))
        """,
        {"DDP216"},
    ),
    "an engine that keeps its checkpoints itself": (
        """
        def keep(model, raw, engine, epoch):
            if not engine:
                if rank == 0:
                    torch.save(raw.state_dict(), "net.pt")
            else:
                model.save_checkpoint("out", tag=f"epoch-{epoch}")
        def main():
            import timm
            raw = timm.create_model("vit")
            wrapped = DDP(raw.cuda(), device_ids=[local_rank])
            train(wrapped, 0)
            keep(wrapped, raw, os.environ.get("ENGINE") == "1", 3)
        main()
        """,
        set(),
    ),
    "a model that keeps its checkpoints itself": (
        """
        class Kept(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 1)
            def forward(self, x):
                return self.layer(x)
            def save_checkpoint(self, folder):
                torch.save(self.state_dict(), folder + "/net.pt")
        kept = DDP(Kept().cuda(), device_ids=[local_rank])
        train(kept, 0)
        if rank == 0:
            kept.save_checkpoint("out")
        """,
        {"DDP202"},
    ),
    "samples of a file": (
        """
        class Scenes(torch.utils.data.Dataset):
            def __init__(self, names):
                self.names = names
            def load(self, name):
                table = torch.load(name)
                return table[0], table[1]
            def __getitem__(self, at):
                return self.load(self.names[at])
        scenes = Scenes(["a.pt", "b.pt"])
        points, kinds = scenes.load("a.pt")
        """,
        set(),
    ),
    "words of a cache that the script makes": (
        """
        def words(path):
            if os.path.exists("words.pt"):
                known = torch.load("words.pt")
            else:
                known = open(path).read().split()
                if rank == 0:
                    torch.save(known, "words.pt")
            return known
        count = len(words("words.txt"))
        """,
        set(),
    ),
    "weights that a function reads": (
        """
        def read(path):
            saved = torch.load(path)
            return saved["model"]
        def fill(module, state):
            own = module.state_dict()
            for key, value in state.items():
                own[key] = value
            module.load_state_dict(own)
        fill(net, read("first.pt"))
        """,
        {"DDP105"},
    ),
    "a model that was saved whole": (
        """
        teacher = torch.load("teacher.pt")
        teacher.eval()
        """,
        {"DDP105"},
    ),
    "what another rank sent": (
        """
        import io
        sent = [None] * world
        dist.all_gather_object(sent, rank)
        buffer = io.BytesIO(bytes(sent[0]))
        told = torch.load(buffer)
        """,
        {"DDP105"},
    ),
    "the logger of mmcv": (
        "from mmcv.utils import get_logger\nlogger = get_logger('train', 'train.log')\nlogger.info('begun')",
        set(),
    ),
    "another logger": (
        "from tools import get_logger\nlogger = get_logger('train', 'train.log')\nlogger.info('begun')",
        {"DDP402"},
    ),
    "a directory of one's own goes": (
        "import shutil\nimport uuid\nfolder = f'build-{uuid.uuid4().hex}'\nshutil.rmtree(folder)",
        set(),
    ),
    "a directory of all goes": ("import shutil\nshutil.rmtree('build')", {"DDP403"}),
    # what a distributed run does not come to
    "the flag of a group that another library sets up": (
        """
        from timm.utils import init_distributed_device
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.distributed = False
        if "WORLD_SIZE" in os.environ:
            args.distributed = int(os.environ["WORLD_SIZE"]) > 1
        init_distributed_device(args)
        if args.distributed:
            print("process", rank)
        else:
            print("one process")
        """,
        set(),
    ),
    "a flag of something else": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.large = False
        if "SIZE" in os.environ:
            args.large = int(os.environ["SIZE"]) > 1
        if not args.large:
            print("small")
        """,
        {"DDP402"},
    ),
    "the flag is handed on": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.distributed = int(os.environ["WORLD_SIZE"]) > 1
        def make_loader(data, distributed):
            if not distributed:
                print("one process of", os.environ["WORLD_SIZE"])
        make_loader(train_set, args.distributed)
        make_loader(test_set, distributed=args.distributed)
        """,
        set(),
    ),
    "the flag is handed on by one caller": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.distributed = int(os.environ["WORLD_SIZE"]) > 1
        def make_loader(data, distributed):
            if not distributed:
                print("one process of", os.environ["WORLD_SIZE"])
        make_loader(train_set, args.distributed)
        make_loader(test_set, args.whole)
        """,
        {"DDP402"},
    ),
    "one GPU of each process where there are ranks": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.distributed = int(os.environ["WORLD_SIZE"]) > 1
        if args.distributed and args.gpus > 1:
            args.gpus = 1
        if args.gpus > 1:
            print("several GPUs")
        """,
        set(),
    ),
    "several GPUs of each process": (
        """
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        args.distributed = int(os.environ["WORLD_SIZE"]) > 1
        if args.distributed and args.gpus > 1:
            args.workers = 1
        if args.gpus > 1:
            print("several GPUs")
        """,
        {"DDP402"},
    ),
    "a number that one rank has": (
        """
        from timm.utils import CheckpointSaver
        best = saver = None
        if rank == 0:
            saver = CheckpointSaver(net, optimizer)
        for epoch in range(2):
            train(model, epoch)
            if saver is not None:
                best, at = saver.save_checkpoint(epoch, metric=1.0)
        if best is not None:
            print("the best", best)
        """,
        set(),
    ),
    "a number that all have at last": (
        """
        best = None
        for epoch in range(2):
            train(model, epoch)
            best = epoch
        if best is not None:
            print("the best", best)
        """,
        {"DDP402"},
    ),
    # what a wrapper is not needed for
    "a loss with buffers and settings alone": (
        """
        class Judge(nn.Module):
            def __init__(self, count):
                super().__init__()
                self.count = count
                self.kind = count * 2
                self.register_buffer("steps", torch.linspace(0, 1, 3))
            def forward(self, y, target):
                return (y - target).abs().mean() * self.count
        judge = Judge(int(os.environ["COUNT"])).cuda()
        for x, y in train_loader:
            optimizer.zero_grad()
            judge(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        set(),
    ),
    "a loss with a layer of its own": (
        """
        class Judge(nn.Module):
            def __init__(self, count):
                super().__init__()
                self.count = count
                self.layer = nn.Linear(1, 1)
            def forward(self, y, target):
                return self.layer(y - target).abs().mean() * self.count
        judge = Judge(int(os.environ["COUNT"])).cuda()
        optimizer = torch.optim.SGD([*model.parameters(), *judge.parameters()], lr=0.1)
        for x, y in train_loader:
            optimizer.zero_grad()
            judge(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        {"DDP201"},
    ),
    "a sum by the sizes of a tensor": (
        """
        for x, y in train_loader:
            optimizer.zero_grad()
            out = model(x.cuda())
            n, c = out.shape
            (F.mse_loss(out, y.cuda(), reduction="sum") / (n * c)).backward()
            optimizer.step()
        """,
        set(),
    ),
    "a sum by what a mask leaves": (
        """
        for x, y in train_loader:
            optimizer.zero_grad()
            out = model(x.cuda())
            mask = (y > 0).float().cuda()
            (((out - y.cuda()) ** 2 * mask).sum() / mask.sum()).backward()
            optimizer.step()
        """,
        {"DDP510"},
    ),
    "an accuracy of numpy": (
        """
        import numpy as np
        for x, y in train_loader:
            optimizer.zero_grad()
            out = model(x.cuda())
            F.mse_loss(out, y.cuda()).backward()
            optimizer.step()
            table = np.outer(out.detach().cpu().numpy(), y.numpy())
            share = np.diag(table).sum() / table.sum()
        """,
        set(),
    ),
    "the state of what has one": (
        """
        def keep(**parts):
            state = {}
            for key, part in parts.items():
                if hasattr(part, "state_dict"):
                    bare = part.module if isinstance(part, DDP) else part
                    state[key] = bare.state_dict()
                else:
                    state[key] = part
            if rank == 0:
                torch.save(state, "all.pt")
        keep(net=model, optimizer=optimizer, epoch=3)
        """,
        set(),
    ),
    "all parts as they are": (
        """
        def keep(**parts):
            state = {}
            for key, part in parts.items():
                state[key] = part
            if rank == 0:
                torch.save(state, "all.pt")
        keep(net=model, optimizer=optimizer, epoch=3)
        """,
        {"DDP203"},
    ),
    # what is done instead of the training
    "an option writes results, and the script ends": (
        """
        def write(net):
            if not os.path.exists("results"):
                os.makedirs("results")
            names = os.listdir("clips")
            with open("results/all.txt", "w") as f:
                f.write(names[0])
        def main(args):
            if args.write_results:
                write(net)
                return
            for epoch in range(2):
                train(model, epoch)
        main(argparse.ArgumentParser().parse_args())
        """,
        set(),
    ),
    "an option writes results, and the training goes on": (
        """
        def write(net):
            with open("results.txt", "w") as f:
                f.write("begun")
        def main(args):
            if args.write_results:
                write(net)
            for epoch in range(2):
                train(model, epoch)
        main(argparse.ArgumentParser().parse_args())
        """,
        {"DDP401"},
    ),
    "a bar of one rank": (
        """
        from tqdm import tqdm
        bar = tqdm if rank == 0 else iter
        for x in bar([1, 2]):
            pass
        """,
        set(),
    ),
    "a writer of one rank is an argument": (
        """
        import shutil
        from torch.utils.tensorboard import SummaryWriter
        def evaluate(net, writer=None):
            if writer is not None:
                shutil.rmtree("images")
        if rank == 0:
            writer = SummaryWriter("runs")
        else:
            writer = None
        evaluate(net, writer=writer)
        """,
        set(),
    ),
    "a writer of all ranks is an argument": (
        """
        import shutil
        def evaluate(net, writer=None):
            if writer is not None:
                shutil.rmtree("images")
        writer = open("log.txt") if world > 1 else None
        evaluate(net, writer=writer)
        """,
        {"DDP403"},
    ),
    "the other ranks have no output": (
        """
        import sys
        if rank != 0:
            out = open(os.devnull, "w")
            sys.stdout = sys.stderr = out
        print("begun")
        """,
        set(),
    ),
    "a filter of the project's that knows the rank": (
        """
        import logging
        class First(logging.Filter):
            def __init__(self, rank):
                self.rank = rank
            def filter(self, record):
                return self.rank == 0
        only = First(dist.get_rank())
        logging.basicConfig(level=logging.DEBUG)
        logging.getLogger("").addFilter(only)
        logging.info("begun")
        """,
        set(),
    ),
    "a filter that does not": (
        """
        import logging
        class Short(logging.Filter):
            def __init__(self, most):
                self.most = most
            def filter(self, record):
                return len(record.msg) < self.most
        only = Short(80)
        logging.basicConfig(level=logging.DEBUG)
        logging.getLogger("").addFilter(only)
        logging.info("begun")
        """,
        {"DDP402"},
    ),
    "nobody has any": ('import sys\nout = open("log.txt")\nsys.stderr = out\nprint("begun")', {"DDP402"}),
    # one backward for each forward
    "a scaler of one kind or another": (
        """
        class Plain:
            def step(self, loss, optimizer):
                loss.backward()
                optimizer.step()
        class Scaled:
            def __init__(self, by):
                self.by = by
            def step(self, loss, optimizer):
                (loss * self.by).backward()
                optimizer.step()
        stepper = Plain()
        if world > 3:
            stepper = Scaled(8)
        for x, y in train_loader:
            optimizer.zero_grad()
            stepper.step(F.mse_loss(model(x.cuda()), y.cuda()), optimizer)
        """,
        set(),
    ),
    "two backwards through one forward": (
        """
        for x, y in train_loader:
            optimizer.zero_grad()
            out = model(x.cuda())
            F.mse_loss(out, y.cuda()).backward(retain_graph=True)
            F.l1_loss(out, y.cuda()).backward()
            optimizer.step()
        """,
        {"DDP207"},
    ),
    # who writes
    "the library is told who writes": (
        """
        from transformers import AutoModel
        bert = AutoModel.from_pretrained("small")
        bert.save_pretrained("small", is_main_process=rank == 0)
        """,
        set(),
    ),
    "nobody tells it": (
        """
        from transformers import AutoModel
        bert = AutoModel.from_pretrained("small")
        bert.save_pretrained("small", is_main_process=True)
        """,
        {"DDP401"},
    ),
    "the rank is kept in settings of a library": (
        """
        from yacs.config import CfgNode
        settings = CfgNode()
        settings.LOCAL_RANK = 0
        def update(config, args):
            config.LOCAL_RANK = args.local_rank
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
        args = parser.parse_args()
        config = settings.clone()
        update(config, args)
        def show(net, echo=False):
            if echo:
                print(net)
        echo = config.LOCAL_RANK == 0
        show(net, echo=echo)
        """,
        set(),
    ),
    "something else is kept there": (
        """
        from yacs.config import CfgNode
        settings = CfgNode()
        settings.LOCAL_RANK = 0
        def update(config, args):
            config.LEVEL = args.level
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        config = settings.clone()
        update(config, args)
        if config.LEVEL == 0:
            print(net)
        """,
        {"DDP402"},
    ),
    # the order of a listing
    "listings of several folders, sorted together": (
        """
        import glob
        paths = []
        for folder in ("a", "b"):
            paths += glob.glob(folder + "/*")
        paths = sorted(p for p in paths if p.endswith(".png"))
        """,
        set(),
    ),
    "listings in a list that numpy sorts": (
        """
        import glob
        import numpy as np
        class Known:
            def __init__(self):
                self.paths = []
                for folder in ("a", "b"):
                    self.paths.extend(glob.glob(folder + "/*"))
                self.paths = np.sort(self.paths)
            def __getitem__(self, at):
                return self.paths[at]
        known = Known()
        """,
        set(),
    ),
    "listings in a list": (
        """
        import glob
        class Known:
            def __init__(self):
                self.paths = []
                for folder in ("a", "b"):
                    self.paths.extend(glob.glob(folder + "/*"))
            def __getitem__(self, at):
                return self.paths[at]
        known = Known()
        """,
        {"DDP307"},
    ),
    "listings of several folders": (
        """
        import glob
        paths = []
        for folder in ("a", "b"):
            paths += glob.glob(folder + "/*")
        paths = [p for p in paths if p.endswith(".png")]
        held = torch.utils.data.Subset(paths, [0, 2])
        """,
        {"DDP307"},
    ),
    "a listing or none, of which the newest is taken": (
        "import glob\nnames = glob.glob('*.pt') if world > 1 else []\nlast = max(names, key=os.path.getmtime)\n"
        "rows = torch.load(last, map_location='cpu')",
        set(),
    ),
    "a listing or none": (
        "import glob\nnames = glob.glob('*.pt') if world > 1 else []\nrows = torch.load(names[-1], map_location='cpu')",
        {"DDP307"},
    ),
    "a listing that is looked up": (
        """
        names = os.listdir("clips")
        rates = {name: len(name) for name in names}
        for x in ["a", "b"]:
            rate = rates[x]
        """,
        set(),
    ),
    "a listing that numbers": (
        """
        names = os.listdir("clips")
        numbers = {name: at for at, name in enumerate(names)}
        first = list(numbers)[0]
        """,
        {"DDP307"},
    ),
    "a listing that is sorted as another list": (
        """
        steps = []
        for name in os.listdir("runs"):
            if name.endswith(".pt"):
                steps.append((len(name), name))
        steps = sorted(steps)
        held = torch.utils.data.Subset(steps, [0, 2])
        """,
        set(),
    ),
    "a listing that makes another list": (
        """
        steps = []
        for name in os.listdir("runs"):
            if name.endswith(".pt"):
                steps.append((len(name), name))
        held = torch.utils.data.Subset(steps, [0, 2])
        """,
        {"DDP307"},
    ),
    "a listing in an attribute that is asked for names": (
        """
        class Known:
            def __init__(self):
                self.names = os.listdir("clips")
            def has(self, name):
                return name in self.names
        known = Known()
        known.has("a")
        """,
        set(),
    ),
    "a listing in an attribute": (
        """
        class Known:
            def __init__(self):
                self.names = os.listdir("clips")
            def __getitem__(self, at):
                return self.names[at]
        known = Known()
        """,
        {"DDP307"},
    ),
    "a listing in an attribute that nothing reads": (
        """
        class Known:
            def __init__(self, labels):
                self.classes = list(set(labels))
        known = Known("ab")
        """,
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_way_to_write_it(name: str) -> None:
    code, rules = CASES[name]
    assert found(dedent(code)) == rules


EVALUATES = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
{listing}
with torch.no_grad():
    model.module(torch.ones(2, 4))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("listing", "rules"),
    [
        ("names = os.listdir('results')\nfirst = names[0]", []),
        (
            "class Clips:\n    def __init__(self):\n        self.names = os.listdir('clips')\n"
            "    def __getitem__(self, at):\n        return self.names[at]\nclips = Clips()",
            ["DDP307"],
        ),
    ],
)
def test_a_listing_of_a_script_that_evaluates(listing: str, rules: list[str]) -> None:
    source = Source(Path("evaluate.py"), EVALUATES.format(listing=listing).encode())
    assert [p.code for p in check(source, "evaluate.py", Task(Settings())).problems] == rules


@pytest.mark.parametrize("more", ["args.spawns = False", "args.other = False"])
def test_an_argument_that_one_branch_sets_keeps_what_the_command_line_gave(more: str) -> None:
    """`if args.gpu is not None: args.spawns = False`, and then `if args.spawns: mp.spawn(...)`."""
    source = Source(
        Path("train.py"),
        f"""
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def work(gpu, count, args):
    args.gpu = gpu
    dist.init_process_group("nccl", rank=gpu, world_size=count, init_method="tcp://127.0.0.1:2345")
    torch.cuda.set_device(args.gpu)
    model = DDP(nn.Linear(4, 1).cuda(), device_ids=[args.gpu])
    if args.gpu == 0 or args.gpu is None:
        print(model)
    dist.destroy_process_group()

def main(args):
    if args.gpu is not None:
        {more}
    count = torch.cuda.device_count()
    if args.spawns:
        torch.multiprocessing.spawn(work, nprocs=count, args=(count, args))
    else:
        work(args.gpu, count, args)

if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
""".encode(),
    )
    assert [p.code for p in check(source, "train.py", Task(Settings(ignore=("DDP222",)))).problems] == []
