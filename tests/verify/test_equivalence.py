"""An original and its conversion train the same model; where one thing is broken, the comparison says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddpify.verify import Result, Status
from ddpify.verify.processes.padded import NoRows, Part
from tests.cases import CONVERTED, Case, conversion, written
from tests.verify.comparing import STILL, Scripts, compared

pytestmark = pytest.mark.torchrun

SCRIPTS = Path(__file__).parent / "scripts"
ORIGINAL, RIGHT = ((SCRIPTS / name).read_text() for name in ("one_process.py", "shared_out.py"))
SET_EPOCH = "        loader.sampler.set_epoch(epoch)\n"
SAMPLER = "sampler=DistributedSampler(train_set)"
LOSS = "cross_entropy(model(x"
#: whose keys have a bias: its gradient is rounding, and Adam's weight decay makes numbers of it
ATTENTION = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(self.inp(x[:, :, None]))
        return self.out((h + self.attention(h, h, h)[0])[:, 0])


"""
FED = "x + 0.1 * torch.randn_like(x)"

#: what is broken -> the result that says so, words of its sentence, its first rule, and the changes
BROKEN: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "a sum for a mean": (
        "same_losses",
        "a mean over the batch in the original, and a sum here",
        "DDP505",
        {"y)\n            loss.backward": 'y, reduction="sum")\n            loss.backward'},
    ),
    "a loss times the ranks": (
        "same_losses",
        "is multiplied by the world size (2)",
        "",
        {"            loss.backward": "            loss = loss * world\n            loss.backward"},
    ),
    "no sampler": ("same_samples", "no sampler", "DDP301", {SAMPLER: "shuffle=True", SET_EPOCH: ""}),
    "no set_epoch": ("same_shuffling", "`set_epoch` is not called", "DDP302", {SET_EPOCH: ""}),
    "a metric of one shard": (
        "same_numbers",
        "one rank's samples",
        "DDP501",
        {"    total, right = all_reduce_sum(total, right)\n": ""},
    ),
    "an evaluation that counts padding": (
        "same_numbers",
        "counts padding",
        "DDP501",
        {"sampler=range(rank, 15, world)": "sampler=DistributedSampler(val_set, shuffle=False)"},
    ),
    "no wrapper": (
        "same_gradients",
        "gradients of their own",
        "DDP201",
        {"DDP(model)": "nn.Sequential(model)", ".module": ""},
    ),
    "a forward around the wrapper": (
        "same_gradients",
        "goes around the wrapper",
        "DDP201",
        {LOSS: "cross_entropy(model.module(x"},
    ),
    "a larger rate": ("same_rates", "multiplied by the world size", "", {"lr=0.01": "lr=0.01 * world"}),
    "a schedule of the whole set": (
        "same_rates",
        "a schedule counts other steps",
        "DDP507",
        {"2 * len(loader)": "2 * (len(train_set) // 4)"},
    ),
    "a mean of unequal batches": (
        "same_losses",
        "not equally large (4, 3)",
        "DDP301",
        {
            SAMPLER: "sampler=[order[i] for i in range(rank, 31, world)]",
            "    loader = ": "    order = [11 * i % 31 for i in range(31)]\n    loader = ",
            SET_EPOCH: "        loader.sampler.reverse()\n",
            "len(loader.sampler) * world": "31",
        },
    ),
    "other weights": (
        "same_start",
        "does not begin with the same values",
        "",
        {"    model = DDP": "    nn.init.zeros_(model[4].bias)\n    model = DDP"},
    ),
    "gradients clipped elsewhere": (
        "same_gradients",
        "changed between backward and step",
        "",
        {"model.parameters(), 5.0": "list(model.parameters())[:2], 0.01"},
    ),
    "a line that is lost": ("same_numbers", "does not print `held out", "", {'print(f"held out': 'print(f"kept'}),
}
#: the same change in both, and what then differs on ranks
BOTH: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "a mean over a mask": (
        "same_losses",
        "different amounts (a mask, ignore_index",
        "",
        {
            "y)\n            loss.backward": 'y, reduction="none")\n'
            "            loss = (loss * (y > 0)).sum() / (y > 0).sum()\n            loss.backward"
        },
    ),
    "a schedule counted in samples": (
        "same_rates",
        "LinearLR at train.py:",
        "DDP507",
        {"2 * len(loader)": "2 * (len(train_set) // 4 + 1)"},
    ),
    "in order": (
        "same_shuffling",
        "shuffles unless it is told not to",
        "DDP301",
        {"shuffle=True": "shuffle=False"},
    ),
}
#: the same change in both, and nothing differs
ALIKE: dict[str, dict[str, str]] = {
    "right": {},
    "noise of numpy": {
        "torch.randn_like(x)": "torch.tensor(numpy.random.normal(0, 1, (len(x), 6)), dtype=torch.float32)",
        "import torch\n": "import numpy\nimport torch\n",
    },
    "padded to the longest": {
        "DataLoader(train_set, ": "DataLoader(train_set, collate_fn=padded, ",
        "def main()": "def padded(batch):\n    rows = [x.expand(1 + int(9 * abs(x[0])), 6) for x, _ in batch]\n"
        "    return nn.utils.rnn.pad_sequence(rows), torch.stack([y for _, y in batch])\n\n\ndef main()",
        FED: "x.mean(0)",
        "len(x)": "len(y)",
    },
    "attention": {
        "nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))": "Net()",
        "def main()": ATTENTION + "def main()",
        "lr=0.01": "lr=0.01, weight_decay=0.01",
        "range(2)": "range(3)",
    },
    "ignored targets": {"y)\n            loss.backward": "y, ignore_index=0)\n            loss.backward"},
    "ignored rows of samples": {
        "model(x + 0.1 * torch.randn_like(x)), y)\n": "torch.stack([model(x + 0.1 * torch.randn_like(x)), model(x)], 1)"
        ".view(-1, 3), torch.stack([y, y * (x[:, 0] > 0)], 1).view(-1), ignore_index=0)\n"
    },
    "mixed rows": {"x + 0.1 * torch.randn_like(x)": "0.9 * x + 0.1 * x[torch.randperm(len(x))]"},
    "a sum": {"y)\n            loss.backward": 'y, reduction="sum")\n            loss.backward'},
    "an accumulation": {
        "            optimizer.zero_grad()\n": "            if i % 2 == 0:\n                optimizer.zero_grad()\n",
        "            optimizer.step()\n": "            if i % 2:\n                optimizer.step()\n",
    },
}
PASS = "for i, (x, y) in enumerate(loader):\n"
BESIDE = "    beside = DataLoader(train_set, batch_size=4, shuffle=True)\n"
ZERO = "            optimizer.zero_grad()\n"
LEFT = "            if i == 3:\n                break\n"
BOTH_READ = "            x = x + 0.1 * next(iter(beside))[0][: len(x)]\n"
AGAIN = "                loader.sampler.set_epoch(loader.sampler.epoch + 1)\n"
SEARCH = """            rows = []
            while len(rows) < 3:
                rows += [row for row in zip(*next(iter(loader))) if row[1] != 1]
            x, y = (torch.stack(column) for column in zip(*rows[:3]))
"""
#: more passes than epochs: the changes in the original, those in the conversion, and what then is not tried
PASSES: dict[str, tuple[dict[str, str], dict[str, str], set[str]]] = {
    "a pass for each batch": (
        {PASS: "for i in range(4):\n            x, y = next(iter(loader))\n", "loss {total / len(train_set):.4f}": ""},
        {
            SET_EPOCH: "",
            PASS: "for i in range(4):\n            loader.sampler.set_epoch(4 * epoch + i)\n"
            "            x, y = next(iter(loader))\n",
            "loss {total / (len(loader.sampler) * world):.4f}": "",
        },
        {"same_samples"},
    ),
    "a pass for each batch beside another": (
        {PASS: PASS + BOTH_READ, "    steps =": BESIDE + "    steps ="},
        {
            PASS: PASS + "            beside.sampler.set_epoch(4 * epoch + i)\n" + BOTH_READ,
            "    steps =": BESIDE.replace("shuffle=True", SAMPLER) + "    steps =",
        },
        set(),
    ),
    "a batch that is left": ({ZERO: LEFT + ZERO}, {ZERO: LEFT + ZERO}, {"same_samples"}),
    "a look before the training": (
        {"    for epoch in": "    shape = next(iter(loader))[0].shape\n    print(len(shape))\n    for epoch in"},
        {
            "    for epoch in": "    shape = next(iter(loader))[0].shape\n"
            "    if is_main_process():\n        print(len(shape))\n    for epoch in"
        },
        set(),
    ),
    "a search for samples": (
        {PASS: "for i in range(4):\n" + SEARCH, "loss {total / len(train_set):.4f}": ""},
        {
            SET_EPOCH: "",
            PASS: "for i in range(4):\n" + SEARCH.replace("                rows +=", AGAIN + "                rows +="),
            "loss {total / (len(loader.sampler) * world):.4f}": "",
        },
        {"same_samples", "same_losses", "same_gradients", "same_parameters", "same_numbers"},
    ),
}


def _changed(text: str, changes: dict[str, str], *, strict: bool = True) -> str:
    for old, new in changes.items():
        assert old in text or not strict, old
        text = text.replace(old, new)
    return text


def _pair(folder: Path, original: str, converted: str, world: int = 2) -> Scripts:
    for name, text in (("original", original), ("converted", converted)):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(text)
    return Scripts(folder / "original" / "train.py", folder / "converted" / "train.py", world=world)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    root = tmp_path_factory.mktemp("equivalence")
    pairs = {name: _pair(root / name, ORIGINAL, _changed(RIGHT, broken[3])) for name, broken in BROKEN.items()}
    for name, changes in {**{name: both[3] for name, both in BOTH.items()}, **ALIKE}.items():
        pairs[name] = _pair(root / name, _changed(ORIGINAL, changes), _changed(RIGHT, changes, strict=False))
    for name, (before, after, _) in PASSES.items():
        pairs[name] = _pair(root / name, _changed(ORIGINAL, before), _changed(RIGHT, after))
    before, after, _ = PASSES["a pass for each batch"]
    forever = {PASS: before[PASS]}  # the sampler keeps to its first epoch
    pairs["a batch for ever"] = _pair(root / "ever", _changed(ORIGINAL, before), _changed(RIGHT, after | forever))
    pairs["three ranks"] = _pair(root / "three", ORIGINAL, RIGHT, world=3)
    recomputed = {f"model({FED})": f"checkpoint(model, ({FED}).requires_grad_(), use_reentrant=True)"}
    recomputed["import torch\n"] = "import torch\nfrom torch.utils.checkpoint import checkpoint\n"
    other_form = {old: new.replace("=True", "=False") for old, new in recomputed.items()}
    pairs["recomputed"] = _pair(root / "again", _changed(ORIGINAL, recomputed), _changed(RIGHT, other_form))
    single = {**STILL, "double": False}
    pairs["single precision"] = Scripts(pairs["right"].original, pairs["right"].converted, still=single)
    return compared(pairs, alone=[*ALIKE, *PASSES, "other weights", "recomputed"])


@pytest.mark.parametrize("name", [*BROKEN, *BOTH])
def test_what_is_broken_is_named_with_its_likely_cause(found: dict[str, dict[str, Result]], name: str) -> None:
    row, words, rule, _ = {**BROKEN, **BOTH}[name]
    failed = [r for r in found[name].values() if r.status is Status.FAILED and r.name != "same_alone"]
    assert [r.name for r in failed] == [row]
    assert words in failed[0].sentence
    assert failed[0].likely[:1] == ((rule,) if rule else ())


@pytest.mark.parametrize("name", [*ALIKE, "three ranks", "recomputed", "single precision"])
def test_what_is_alike_is_found_so(found: dict[str, dict[str, Result]], name: str) -> None:
    assert {r.name: r.sentence for r in found[name].values() if r.status is not Status.HELD} == {}


@pytest.mark.parametrize("name", PASSES)
def test_passes_that_are_broken_off_train_where_nothing_else_does(
    found: dict[str, dict[str, Result]], name: str
) -> None:
    untried = {r.name for r in found[name].values() if r.status is Status.NOT_TRIED}
    assert {r.name: r.sentence for r in found[name].values() if r.status is Status.FAILED} == {}
    assert untried == PASSES[name][2]
    steps = 6 if name == "a batch that is left" else 8
    assert found[name]["same_alone"].sentence.endswith(f"bit by bit, over {steps} steps")


def test_passes_that_begin_alike_for_ever_are_told(found: dict[str, dict[str, Result]]) -> None:
    told = found["a batch for ever"]["same_shuffling"]
    assert (told.status, told.likely) == (Status.FAILED, ("DDP302",))


def test_a_sum_is_said_to_be_one(found: dict[str, dict[str, Result]]) -> None:
    assert "held against 1/2 of it" in found["a sum"]["same_losses"].sentence


@pytest.mark.parametrize("name", ["ignored targets", "ignored rows of samples"])
def test_a_loss_that_divides_by_weights_is_held_against_the_ranks_means(
    found: dict[str, dict[str, Result]], name: str
) -> None:
    told = found[name]["same_losses"].sentence
    assert "at train.py:36 divides by the weights of each rank's own batch (DDP510)" in told
    assert "over all ranks' samples it would be" in told


def test_what_an_optimizer_makes_of_rounding_is_no_difference(found: dict[str, dict[str, Result]]) -> None:
    assert "elements of Net.attention.in_proj_bias" in found["attention"]["same_parameters"].sentence


def test_batches_are_padded_to_the_longest_of_all_ranks(found: dict[str, dict[str, Result]]) -> None:
    assert "padded to the longest of all ranks" in found["padded to the longest"]["same_losses"].sentence


def _stacked(count: int) -> dict[str, Any]:
    """What a collate function makes of so many samples, the i-th 1 + i % 3 long."""
    rows = [torch.full((1 + i % 3,), float(i)) for i in range(count)]
    names = [f"sample {i}" for i in range(count)]
    first = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"rows": first, "columns": (first.T, torch.arange(count)), "names": names, "longest": first.shape[1]}


def test_a_ranks_rows_are_cut_out_of_the_batch_of_all() -> None:
    all_of_it, own = _stacked(5), _stacked(2)
    cut = Part(5, 3, 2).of(all_of_it, own)
    assert torch.equal(cut["rows"], all_of_it["rows"][3:])
    assert torch.equal(cut["columns"][0], cut["rows"].T)
    assert cut["columns"][1].tolist() == [3, 4]
    assert (cut["names"], cut["longest"]) == (["sample 3", "sample 4"], 3)


def test_rows_that_nobody_can_find_are_not_cut() -> None:
    packed = [torch.nn.utils.rnn.pack_sequence([torch.ones(2)] * n) for n in (4, 2)]
    with pytest.raises(NoRows):
        Part(4, 0, 2).of(*packed)
    with pytest.raises(NoRows):
        Part(4, 0, 2).of(torch.ones(7), torch.ones(3))


def test_one_process_repeats_the_original_bit_by_bit(found: dict[str, dict[str, Result]]) -> None:
    assert found["right"]["same_alone"].sentence.endswith("bit by bit, over 8 steps")
    assert found["other weights"]["same_alone"].status is Status.FAILED


# ---- the fixtures -------------------------------------------------------------------------------------------

RUN = tuple(case for case in CONVERTED if case.run and not case.needs)
SOME = tuple(
    c
    for c in RUN
    if c.name in ("argparse_functions", "gan_retained_graph", "lbfgs_closure", "language_model_methods", "vae_sum_loss")
)


def fixture_pair(case: Case, root: Path) -> Scripts:
    """The files of a fixture and of its conversion, each in a folder of its own."""
    before = {"before.py": case.before.read_bytes(), **case.modules}
    for who, files in (("original", before), ("converted", before | written(conversion(case)))):
        for name, data in files.items():
            path = root / case.name / who / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return Scripts(
        root / case.name / "original" / "before.py", root / case.name / "converted" / "before.py", args=case.args
    )


def check_fixtures(cases: tuple[Case, ...], root: Path) -> None:
    for name, results in compared({case.name: fixture_pair(case, root) for case in cases}, timeout=90).items():
        failed = {r.name: r.sentence for r in results.values() if r.status is Status.FAILED}
        assert not failed, (name, failed)
        assert results["same_alone"].status is Status.HELD


def test_some_fixtures_train_the_same_model(tmp_path: Path) -> None:
    check_fixtures(SOME, tmp_path)


@pytest.mark.slow
def test_all_fixtures_train_the_same_model(tmp_path: Path) -> None:
    check_fixtures(RUN, tmp_path)
