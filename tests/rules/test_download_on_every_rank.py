"""DDP303: one process per node downloads, and nothing collective happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import convert_bytes
from tests.rules.edited import edited, linted, script

CODE = "DDP303"
FIRST = "with main_process_first():\n    "


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("from torchvision import datasets", "data = datasets.MNIST('data', download=True)"),
        (
            "from torchvision.datasets import MNIST as Digits\nimport sys\nfetch = bool(sys.argv)",
            "data = Digits('data', download=fetch)",
        ),
        ("from datasets import load_dataset", "data = load_dataset('glue')"),
        ("from huggingface_hub import snapshot_download", "folder = snapshot_download('a/b')"),
        ("from torchvision.datasets.utils import download_and_extract_archive as get", "get('http://x/a.zip', 'data')"),
    ],
)
def test_one_process_goes_first(imports: str, statement: str) -> None:
    result = edited(script(imports=imports, before=statement), CODE)
    assert FIRST + statement in result.text
    assert result.needs == {"main_process_first"}
    assert not result.left


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("from urllib.request import urlretrieve", "urlretrieve('http://x/a.zip', 'a.zip')"),
        ("import zipfile\narchive = zipfile.ZipFile('a.zip')", "archive.extractall('data')"),
    ],
)
def test_what_would_be_done_again_is_done_by_one(imports: str, statement: str) -> None:
    result = edited(script(imports=imports, before=statement), CODE)
    assert f"if is_local_main_process():\n    {statement}\ndist.barrier()" in result.text
    assert not result.left


@pytest.mark.parametrize(
    "statement",
    [
        "data = datasets.MNIST('data', download=False)",
        "data = datasets.MNIST('data')",
        "fetch = False\ndata = datasets.MNIST('data', download=fetch)",
    ],
)
def test_what_downloads_nothing_stays(statement: str) -> None:
    text = script(imports="from torchvision import datasets", before=statement)
    assert edited(text, CODE).text == text


def test_neighbours_share_a_block() -> None:
    statements = (
        "train = datasets.MNIST('data', train=True, download=True)\n\n"
        "# for the end\ntest = datasets.MNIST('data', train=False, download=True)"
    )
    result = edited(script(imports="from torchvision import datasets", before=statements), CODE)
    assert result.text.count("with main_process_first():") == 1


def test_the_question_whether_it_is_there_is_asked_inside() -> None:
    before = "if not os.path.exists('a.zip'):\n    urlretrieve('http://x/a.zip', 'a.zip')"
    result = edited(script(imports="from urllib.request import urlretrieve", before=before), CODE)
    assert result.has(
        "with main_process_first():\n    if not os.path.exists('a.zip'):\n"
        "        urlretrieve('http://x/a.zip', 'a.zip')"
    )


def test_a_handler_is_not_reached_by_all() -> None:
    before = "try:\n    data = open('a.zip')\nexcept OSError:\n    urlretrieve('http://x/a.zip', 'a.zip')"
    result = edited(script(imports="from urllib.request import urlretrieve", before=before), CODE)
    assert result.has("with main_process_first():\n    try:\n        data = open('a.zip')")


def test_the_caller_that_asks_for_it_is_guarded() -> None:
    functions = """
        class Digits:
            def __init__(self, root, fetch):
                self.data = datasets.MNIST(root, download=fetch)
        """
    result = edited(
        script(
            imports="from torchvision import datasets",
            functions=functions,
            before="one = Digits('a', True)\ntwo = Digits('a', False)",
        ),
        CODE,
    )
    assert result.has("with main_process_first():\n    one = Digits('a', True)\ntwo = Digits('a', False)")


def test_a_class_that_is_a_dataset_itself() -> None:
    functions = "class Digits(datasets.MNIST):\n    pass"
    result = edited(
        script(
            imports="from torchvision import datasets", functions=functions, before="one = Digits('a', download=True)"
        ),
        CODE,
    )
    assert result.has("with main_process_first():\n    one = Digits('a', download=True)")


def test_what_a_lambda_downloads_is_guarded_at_its_call() -> None:
    functions = "known = {'a': lambda: datasets.MNIST('a', download=True), 'b': lambda: [1]}"
    result = edited(
        script(
            imports="from torchvision import datasets", functions=functions, before="make = known['a']\ndata = make()"
        ),
        CODE,
    )
    assert result.has("with main_process_first():\n    data = make()")
    assert not result.left


def test_a_dataset_inside_a_training_loader_is_left_to_the_rule_for_loaders() -> None:
    text = script(imports="from torchvision import datasets")
    text = text.replace("TensorDataset(torch.ones(8, 4))", "datasets.MNIST('a', download=True)")
    result = edited(text, CODE)
    assert result.text == text
    assert not result.left


def test_a_dataset_inside_a_loader_that_stays_is_guarded_with_it() -> None:
    before = "more = DataLoader(datasets.MNIST('a', download=True), batch_size=2)"
    result = edited(script(imports="from torchvision import datasets", before=before), CODE)
    assert FIRST + before in result.text
    assert not result.left


def test_the_set_up_comes_before_a_download_at_the_top() -> None:
    result = edited(
        script(imports="from urllib.request import urlretrieve\nurlretrieve('http://x/a.zip', 'a.zip')"), CODE
    )
    assert result.has("if is_local_main_process():\n    urlretrieve('http://x/a.zip', 'a.zip')\ndist.barrier()")
    assert not result.left


GET = "from torchvision import datasets\ndef get():\n    return datasets.MNIST('a', download=True)\n"


def test_a_download_in_another_file_is_guarded_there(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(GET)
    result = edited(script(imports="from data import get", before="data = get()"), CODE, path=tmp_path / "train.py")
    assert result.guarded("data.py") == ["with main_process_first(): return datasets.MNIST('a', download=True)"]


def test_a_download_in_a_package_that_has_no_copy_is_guarded_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text(GET + "HERE = __path__\n")
    result = edited(script(imports="from data import get", before="data = get()"), CODE, path=tmp_path / "train.py")
    assert result.has("with main_process_first():\n    data = get()")


def test_a_call_that_trains_is_not_put_behind_a_barrier(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    fit = "def fit(model, loader):\n    get()\n    for (x,) in loader:\n        model(x)\n"
    (tmp_path / "data" / "__init__.py").write_text(GET + fit + "HERE = __path__\n")
    result = edited(
        script(imports="from data import fit", before="fit(model, loader)"), CODE, path=tmp_path / "train.py"
    )
    assert len(result.left) == 1


DDP = """
from contextlib import contextmanager
import torch.distributed as dist
from torchvision import datasets

@contextmanager
def first():
    if dist.get_rank():
        dist.barrier()
    yield
    if not dist.get_rank():
        dist.barrier()

"""


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("with first():\n    a = datasets.MNIST('a', download=True)", 0),
        ("if dist.get_rank() == 0:\n    a = datasets.MNIST('a', download=True)", 0),
        ("a = datasets.MNIST('a', download=True)", 1),
        ("a = datasets.MNIST('a', download=dist.get_world_size() > 1)", 1),
    ],
)
def test_lint(code: str, count: int) -> None:
    assert len(linted(DDP + code, CODE)) == count


OWN = """
from torch.utils.data import Dataset

class Digits(Dataset):
    def __init__(self, root, download=False):
        self.root = root
        if download:
            self.fetch()
        self.rows = torch.load(os.path.join(root, "rows.pt"))

    def fetch(self):
        if os.path.exists(self.root):
            return
        os.makedirs(self.root)
        torch.save(torch.ones(8, 4), os.path.join(self.root, "rows.pt"))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return (self.rows[index],)
"""


@pytest.mark.parametrize("flag", ["download=True", "download=bool(os.environ)"])
def test_what_a_dataset_of_the_project_fetches_is_written_on_every_node(flag: str) -> None:
    text = script(functions=OWN, before=f"digits = Digits('data', {flag})").replace(
        "loader = DataLoader(TensorDataset(torch.ones(8, 4))", "loader = DataLoader(Digits('data')"
    )
    result = edited(text, "DDP401", CODE)
    assert f"with main_process_first():\n    digits = Digits('data', {flag})" in result.text
    assert "is_main_process()" not in result.text


@pytest.mark.parametrize("looks", ["print(net(x))", "total += net(x).sum().item()"])
def test_a_dataset_inside_of_an_evaluation_s_loader_is_guarded(looks: str) -> None:
    """Where the evaluation runs in full the loader keeps its statement, which goes under the guard as a whole."""
    text = convert_bytes(
        f"""
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms as t
train = DataLoader(datasets.MNIST("data", download=True, transform=t.ToTensor()), batch_size=2)
test = DataLoader(datasets.MNIST("data", train=False, download=True, transform=t.ToTensor()), batch_size=2)
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train:
    net(x).mean().backward()
    optimizer.step()
total = 0.0
with torch.no_grad():
    for x, y in test:
        {looks}
print(total)
""".encode()
    )
    assert text.text.count("with main_process_first():") == 2
    assert not [f for f in text.plan.left if f.code == "DDP303"]


def test_a_database_is_built_by_one() -> None:
    """`lmdb.open` with a size makes it, with `readonly=True` it reads."""
    functions = """
        def build(path):
            with lmdb.open(path, map_size=1000) as env:
                env.begin(write=True).put(b'a', b'b')
        """
    before = "if not os.path.exists('rows'):\n    build('rows')\nrows = lmdb.open('rows', readonly=True, map_size=1000)"
    result = edited(script(imports="import lmdb", functions=functions, before=before), CODE)
    assert result.has(f"{FIRST}if not os.path.exists('rows'):\n        build('rows')")


KEPT = """
import os
import pickle
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def table(path):
    if os.path.exists(path):
        print("loading", path)
        held = pickle.load(open(path, "rb"))
    else:
        print("building", path)
        held = [1, 2, 3]
        pickle.dump(held, open(path, "wb"))
    return held

words = table("words.dat")
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, len(words))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x).mean().backward()
    optimizer.step()
"""


def test_what_is_printed_where_a_cache_is_found_is_printed_once() -> None:
    """One process per node builds it, all the others find it and would say so."""
    text = convert_bytes(KEPT.encode()).text
    assert '            if is_main_process():\n                print("loading", path)\n' in text
    assert '        else:\n            print("building", path)\n' in text


EARLY = """
from pathlib import Path
import pickle
import tempfile

class Words:
    def __init__(self, root):
        self.root = root
        {call}
        self.words = pickle.load(open(self.path(), "rb"))

    def path(self):
        return os.path.join(self.root, "words.pkl")

    def is_there(self):
        return os.path.exists(os.path.join(self.root, "words.pkl"))

    def build(self):
        if {asked}:
            print("there already")
            return
        print("building")
        parts = tempfile.mkdtemp()
        torch.save(torch.ones(3), parts + "/part.pt")
        {file}
        {writes}
"""


@pytest.mark.parametrize(
    ("asked", "file", "writes"),
    [
        ("os.path.exists(self.path())", "file = self.path()", "pickle.dump(['a'], open(file, 'wb'))"),
        ("self.is_there()", "file = os.path.join(self.root, 'words.pkl')", "pickle.dump(['a'], open(file, 'wb'))"),
        ("Path(self.path()).is_file()", "file = Path(self.path())", "pickle.dump(['a'], file.open('wb'))"),
    ],
)
def test_who_returns_where_the_file_is_there_is_called_by_one_process_first(asked: str, file: str, writes: str) -> None:
    functions = EARLY.format(call="self.build()", asked=asked, file=file, writes=writes.replace("'wb'", '"wb"'))
    result = edited(script(functions=functions, before="words = Words('data')"), CODE, "DDP402", "DDP403", "DDP404")
    assert result.has("        with main_process_first():\n            self.build()\n")
    assert result.has('            if is_main_process():\n                print("there already")')
    # one process per node builds, alone: nothing in there is told, and nobody is waited for
    assert 'print("building")\n        parts = tempfile.mkdtemp()\n' in result.text
    assert "barrier" not in result.text
    assert not result.left


def test_one_that_builds_in_another_is_a_part_of_it() -> None:
    functions = """
def fetch(path):
    if os.path.exists(path):
        return
    torch.save(torch.ones(3), path)

def prepare(path):
    if os.path.exists(path + ".done"):
        return torch.load(path + ".done")
    fetch(path)
    rows = torch.load(path)
    torch.save(rows, path + ".done")
    return rows
"""
    result = edited(script(functions=functions, before="rows = prepare('rows.pt')"), CODE)
    assert result.text.count("with main_process_first():") == 1
    assert "with main_process_first():\n    rows = prepare('rows.pt')" in result.text


def test_what_is_asked_for_and_not_made_is_no_cache() -> None:
    functions = """
def prepare(path):
    if os.path.exists("stop"):
        return
    torch.save(torch.ones(3), path)
"""
    text = script(functions=functions, before="prepare('rows.pt')")
    assert edited(text, CODE).text == text
