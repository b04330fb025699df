"""`ddpify facts` on the fixtures: each role is found on each shape, with its line and the evidence."""

from __future__ import annotations

import functools

import pytest

from ddpify.facts import collect
from ddpify.project import Project
from ddpify.source import Source
from ddpify.understood import listing
from tests.cases import CASES, NOWHERE, Case, each

CONVERTED = [c for c in CASES if c.converts]
#: what a script has not: it steps by hand; it trains a prompt that is in no module
LACKS = {"columns_of_text": {"optimizers"}, "prompt_before_frozen_model": {"trained modules", "wrap points"}}


@functools.cache
def told(case: Case) -> dict[str, str]:
    """The sections, each as one line of text."""
    overlay = {NOWHERE / name: Source(NOWHERE / name, data) for name, data in case.modules.items()}
    source = Source(NOWHERE / "before.py", case.before.read_bytes())
    sections: dict[str, list[str]] = {}
    for line in listing(collect(Project(source, overlay=overlay), converting=True)):
        if not line.startswith(" "):
            title, _, rest = line.partition(":")
            sections[title] = [rest.strip()]
        else:
            sections[title].append(line.strip())
    return {title: " ".join(" ".join(lines).split()).replace(f"{NOWHERE}/", "") for title, lines in sections.items()}


@each(CONVERTED)
def test_every_role_is_found(case: Case) -> None:
    found = told(case)
    for title in ("entry point", "trained modules", "optimizers", "losses", "wrap points"):
        lacks = title in LACKS.get(case.name, ())
        assert (found[title] == "none found") is lacks, title
    assert found["training loaders"] != "none found" or found["batches without a loader"] != "none found"
    text = " ".join(found.values())
    assert "an unknown line" not in text
    assert "not seen to come from a forward" not in text
    assert "no wrap point" not in text
    if "torch.save(" in case.before.read_text(encoding="latin-1"):
        assert found["what is saved"] != "none found"


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        (
            "trainer_class_gpu_id",
            "entry point",
            "behind the main guard at line 84; the way to .backward() at line 43: `main(gpu, args.epochs, "
            "args.save_every, args.batch_size)` (line 93), `fitter.fit(epochs)` (line 81), `self._epoch(epoch)` "
            "(line 62), `self._step(points, answers)` (line 52)",
        ),
        ("trainer_class_gpu_id", "device choices", "`gpu` is given as `gpu` (before.py:93); `gpu` is `0`"),
        ("package_of_tools", "device choices", '`cfg.DEVICE` is `"cuda" if torch.cuda.is_available()'),
        ("package_of_tools", "losses", "computed from the forward at toolbox/loops.py:10"),
        ("engine_and_networks", "trained modules", "class UNet derives from nn.Module"),
        ("engine_and_networks", "what is saved", "the module made at networks.py:35 and the optimizer made at line 60"),
        ("resume_checkpoint", "what is loaded", "into the optimizer made at line 81, before the first training step"),
        ("resume_checkpoint", "what is loaded", "the epochs begin at it: `start_epoch` is `checkpoint['epoch']`"),
        ("checkpoint_helpers", "what is loaded", "utils.py:42 model.load_state_dict(checkpoint['state_dict']) into"),
        ("package_of_tools", "what is loaded", "into the module made at line 19, behind the first training step"),
        ("networks_in_a_dict", "wrap points", '`nets["dis"]` holds the module made at line 33 from here on'),
        ("networks_in_a_dict", "losses", "57 gen_loss.backward() computed from the forward at line 48, line 56"),
        ("folds_by_index", "training loaders", "DataLoader(Subset(data, rest.tolist())"),
        ("phases_dict", "batches", "a batch of the training loader at line 24; a batch of the evaluation loader"),
        ("distilled_student", "models that are not trained", "no wrapper"),
        ("options_class", "entry point", "34 self.parser.parse_args() parses the command line"),
        ("tensor_accumulators", "metric accumulators", "collects a sum over the samples of a batch"),
    ],
)
def test_the_evidence_is_told(name: str, title: str, said: str) -> None:
    (case,) = (c for c in CASES if c.name == name)
    assert said in told(case)[title]
