"""DDP307 in scripts that are distributed already: only where an order that may differ comes to what goes by it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.test_lint_other_ways import found

#: what each is followed to, or where the way ends
CASES = {
    "a dataset of a class of its own, through a function": (
        """
        def find(folder):
            return [os.path.join(folder, name) for name in os.listdir(folder)]
        class Photos(torch.utils.data.Dataset):
            def __init__(self, paths):
                self.paths = paths
            def __len__(self):
                return len(self.paths)
            def __getitem__(self, at):
                return torch.load(self.paths[at], map_location="cpu")
        photos = Photos(find("photos"))
        """,
        True,
    ),
    "the same, sorted by the dataset": (
        """
        def find(folder):
            return [os.path.join(folder, name) for name in os.listdir(folder)]
        class Photos(torch.utils.data.Dataset):
            def __init__(self, paths):
                self.paths = sorted(paths)
            def __len__(self):
                return len(self.paths)
            def __getitem__(self, at):
                return torch.load(self.paths[at], map_location="cpu")
        photos = Photos(find("photos"))
        """,
        False,
    ),
    "the same, sorted by the caller": (
        """
        def find(folder):
            return [os.path.join(folder, name) for name in os.listdir(folder)]
        class Photos(torch.utils.data.Dataset):
            def __init__(self, paths):
                self.paths = paths
            def __getitem__(self, at):
                return torch.load(self.paths[at], map_location="cpu")
        photos = Photos(sorted(find("photos")))
        """,
        False,
    ),
    "rows that a class above the dataset gives": (
        """
        class Rows(torch.utils.data.Dataset):
            def __init__(self):
                self.rows = []
            def __getitem__(self, at):
                return self.rows[at]
        class Clips(Rows):
            def __init__(self, root):
                super().__init__()
                for scene in os.listdir(root):
                    for at in range(3):
                        self.rows += [(scene, at)]
        clips = Clips("clips")
        """,
        True,
    ),
    "rows of each scene, which is asked by its name": (
        """
        class Scenes:
            def __init__(self, root):
                self.rows = {}
                for scene in os.listdir(root):
                    self.rows[scene] = len(scene)
            def size(self, scene):
                return self.rows[scene]
        scenes = Scenes("clips")
        size = scenes.size("a")
        """,
        False,
    ),
    "classes that are numbered in a dict": (
        """
        class Names:
            def __init__(self, root):
                self.numbers = {}
                for name in os.listdir(root):
                    self.numbers[name] = len(self.numbers)
        names = Names("classes")
        """,
        True,
    ),
    "a number of a class by index": (
        "names = os.listdir('classes')\nlabels = [names.index(n) for n in ('cat', 'dog')]",
        True,
    ),
    "files that each rank takes its own of": (
        "files = os.listdir('shards')\nown = files[rank::world]",
        True,
    ),
    "files of which each rank takes the greatest": (
        "files = os.listdir('shards')\nlast = max(files)",
        False,
    ),
    "a generator of samples": (
        """
        class Stream(torch.utils.data.IterableDataset):
            def __init__(self, folder):
                self.files = os.listdir(folder)
            def __iter__(self):
                for name in self.files:
                    yield from open(name)
        stream = Stream("texts")
        """,
        True,
    ),
    "a bank of which one is drawn at random": (
        """
        import random
        class Pasted(torch.utils.data.Dataset):
            def __init__(self, rows, folder):
                self.rows = rows
                self.bank = os.listdir(folder)
            def __getitem__(self, at):
                return self.rows[at], random.choice(self.bank)
        pasted = Pasted([1, 2, 3], "bank")
        """,
        False,
    ),
    "modules of a folder are imported": (
        """
        import importlib
        for name in os.listdir("models"):
            if name.endswith(".py"):
                importlib.import_module("models." + name[:-3])
        """,
        False,
    ),
    "a table is read from several files": (
        """
        import glob
        import pandas as pd
        class Table(torch.utils.data.Dataset):
            def __init__(self, pattern):
                self.rows = pd.concat([pd.read_csv(f) for f in glob.glob(pattern)])
            def __getitem__(self, at):
                return self.rows.iloc[at]
        table = Table("*.csv")
        """,
        True,
    ),
    "a table is read from several files and sorted": (
        """
        import glob
        import pandas as pd
        class Table(torch.utils.data.Dataset):
            def __init__(self, pattern):
                self.rows = pd.concat([pd.read_csv(f) for f in glob.glob(pattern)]).sort_values("name")
            def __getitem__(self, at):
                return self.rows.iloc[at]
        table = Table("*.csv")
        """,
        False,
    ),
    "layers by the names of a file": (
        "parts = nn.ModuleList([nn.Linear(len(n), 2) for n in list(set(open('names.txt').read().split()))])",
        True,
    ),
    "layers by the numbers of a file": (
        "parts = nn.ModuleList([nn.Linear(n, 2) for n in list(set(int(w) for w in open('n.txt').read().split()))])",
        False,
    ),
    "labels that are numbers": (
        """
        labels = [int(line) for line in open("labels.txt")]
        kinds = list(set(labels))
        numbers = {kind: at for at, kind in enumerate(kinds)}
        """,
        False,
    ),
    "labels of which nobody knows what they are": (
        """
        import json
        labels = json.load(open("labels.json"))["labels"]
        kinds = list(set(labels))
        numbers = {kind: at for at, kind in enumerate(kinds)}
        """,
        False,
    ),
    "labels that are texts, which a function gives": (
        """
        def read(path):
            with open(path) as f:
                return [line.strip().split(",")[1] for line in f]
        kinds = list(set(read("labels.csv")))
        numbers = dict(zip(kinds, range(len(kinds))))
        """,
        True,
    ),
    "labels that are added to a set": (
        """
        kinds = set()
        for line in open("labels.csv"):
            kinds.add(line.strip())
        numbers = {}
        for kind in kinds:
            numbers[kind] = len(numbers)
        """,
        True,
    ),
    "numbers that are added to a set": (
        """
        kinds = set()
        for line in open("labels.csv"):
            kinds.add(len(line))
        numbers = {}
        for kind in kinds:
            numbers[kind] = len(numbers)
        """,
        False,
    ),
    "the newest of a listing": (
        """
        import glob
        saved = glob.glob("*.pt")
        if len(saved) > 0:
            saved.sort(key=os.path.getmtime)
            state = torch.load(saved[-1], map_location="cpu")
        """,
        False,
    ),
    "any of a listing": (
        """
        import glob
        saved = glob.glob("*.pt")
        if len(saved) > 0:
            state = torch.load(saved[-1], map_location="cpu")
        """,
        True,
    ),
    "cores of the processor": (
        """
        import re
        def siblings(path):
            found = re.findall(r"(\\d+)", open(path).read())
            return [tuple(sorted(map(int, found)))]
        pairs = list(set(siblings("cpu0")))
        numbers = {pair: at for at, pair in enumerate(pairs)}
        """,
        False,
    ),
    "the training goes through the files": (
        """
        for name in os.listdir("parts"):
            x = torch.load(name, map_location="cuda")
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        """,
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_order_is_followed(name: str) -> None:
    code, differs = CASES[name]
    assert found(dedent(code), "DDP307") == ({"DDP307"} if differs else set())
