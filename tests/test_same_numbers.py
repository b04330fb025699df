"""Conversions with `--global-batch keep` have the original's numbers on any number of ranks; damaged ones do not.

What is compared, and with what, is in tests/numbers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.numbers import Pair, Shape, Texts, Wanted, changed, differences, run_pairs

pytestmark = pytest.mark.torchrun
SHAPES = (
    Shape("accumulated_gradients", doubled=(("BATCH = 2, 3, 6", "BATCH = 2, 3, 12"),)),
    Shape("accumulated_carried_over", doubled=(("default=6", "default=12"),)),
    Shape("batches_by_key"),
    Shape("batches_counted"),
    Shape("counted_by_helpers"),
    Shape("counting_classes"),
    Shape("cycled_and_zipped"),
    Shape("dropped_batches", doubled=(("[:47]), 6", "[:47]), 12"),)),
    Shape("evaluations_grown"),
    Shape("evaluations_kept"),
    Shape("heads_over_sentences"),
    Shape("meters_and_patience"),
    Shape("numbers_in_containers"),
    Shape("options_at_run_time"),
    Shape("pairs_counted", own="train"),
    Shape("parts_that_train"),
    Shape("per_class_counts"),
    Shape("ratios_of_batches"),
    Shape("rows_by_index"),
    Shape("scaled_sums", doubled=(("default=6", "default=12"),)),
    Shape("squeezed_scores"),
    Shape("sums_by_hand", own="^  .* of "),
    Shape("steps_and_passes", own="window"),
    Shape("steps_first_sums"),
    Shape("tiny_evaluation"),
    Shape("accelerator_flag_kwargs", own="loss: "),
    Shape("argparse_functions", (("default=16", "default=12"),), own=r"^epoch \d+: "),
    Shape("average_meter", (("default=20", "default=12"),), own=r"^epoch \["),
    Shape("averaged_weights", (("get_loaders(5)", "get_loaders(6)"),)),
    Shape("best_file_and_hparams", (("batch_size=10", "batch_size=12"),)),
    Shape("best_weights_in_memory", (('"batch": 9', '"batch": 6'),)),
    Shape("checkpoint_helpers", (("batch_size=16", "batch_size=12"),)),
    Shape("click_commands", (("default=16", "default=12"),), padded="^epoch"),
    Shape("click_pulses", args=("--epochs", "2", "-b", "12")),
    Shape("collected_predictions", (("batch_size=16", "batch_size=12"), ("[1.0, 1.2, 0.9]", "[1.0, 1.0, 1.0]"))),
    Shape("columns_of_text", own="^  "),
    Shape("crlf", (("BATCH_SIZE = 9", "BATCH_SIZE = 6"),)),
    Shape("device_string_cuda0", (("batch_size = 25", "batch_size = 24"),), own="step"),
    Shape("distilled_student", (("BATCH = 10", "BATCH = 12"),)),
    Shape("early_stopping_module"),
    Shape("engine_and_networks", (("default=8", "default=6"),), own=r"^Epoch: \[", padded="^val"),
    Shape("exit_status"),
    Shape("folds_by_index"),
    Shape("generator_batches", (("default=7", "default=6"),)),
    Shape("inline_evaluation_csv", (("batch_size=10", "batch_size=12"),), own="^  loss"),
    Shape("interrupted_and_resumed", (("batch_size=16", "batch_size=12"),)),
    Shape("language_model_methods", (("batch_size=10", "batch_size=12"),)),
    Shape("latin1_coding_line"),
    Shape("lbfgs_closure"),
    Shape("loader_factory_flag"),
    Shape("made_in_one_statement", (("batch_size=8", "batch_size=6"),)),
    Shape("main_guard_only", (("batch_size = 16", "batch_size = 12"),)),
    Shape("module_level_no_device", (("batch_size=8", "batch_size=6"),), own="^Loss at step"),
    Shape("module_trains_itself", (("batch_size=10", "batch_size=12"),), padded="train"),
    Shape("names_that_mean_nothing", (("batch_size=7", "batch_size=6"),), padded="loss"),
    Shape("notebook_export", (("batch_size = 16", "batch_size = 12"),), padded="^Runde"),
    Shape("optimizers_compared", (("BATCH_SIZE = 8", "BATCH_SIZE = 6"),), own="."),
    Shape("options_class", (("default=8", "default=6"),), own="loss"),
    Shape("package_of_tools", (("BATCH = 9", "BATCH = 6"),)),
    Shape("phases_dict", (("batch_size=4", "batch_size=6"),)),
    Shape(
        "plateau_early_stopping",
        (("default=16", "default=12"),),
        padded="^epoch",
        args=("--epochs", "4", "--lr", "0.05"),
    ),
    Shape("rates_tried", (("batch_size=8, shuffle=True", "batch_size=6, shuffle=True"),)),
    Shape("resume_checkpoint", (("default=16", "default=12"),)),
    Shape("rotating_checkpoints", (("default=8", "default=6"),)),
    Shape("running_loss_every_k", (("batch_size=4", "batch_size=6"),), own="^epoch .*batch"),
    Shape("spawned_workers", (("BATCH = 9", "BATCH = 6"),)),
    Shape("steps_first_tagger"),
    Shape("subcommands_interrupted", (("default=10", "default=12"),)),
    Shape("tabs_and_semicolons", (("BATCH = 10", "BATCH = 12"),), padded="^Epoch"),
    Shape("tensor_accumulators", (("BATCH = 16", "BATCH = 12"),)),
    Shape("trainer_class_json_log"),
    Shape("trainer_every_n_steps", (("batch_size=8", "batch_size=6"),)),
    Shape("two_calls", (("batch_size=15, shuffle=True", "batch_size=12, shuffle=True"),)),
    Shape(
        "vae_sum_loss",
        (("default=16", "default=12"), ("torch.randn_like(logvar)", "torch.ones_like(logvar)")),
        own="^Train",
        padded="average loss",
    ),
)

#: run in `make test`, on two ranks; the others, and one and three ranks, in `make test-all`
CORE = tuple(s for s in SHAPES if s.case is None or s.name in ("accumulated_gradients", "phases_dict", "vae_sum_loss"))


def _each(shapes: Iterable[Shape]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shape", [pytest.param(s, id=s.name) for s in shapes])


class Pairs:
    """Compared runs; all shapes that any test asks for are run at once, when the first of a world is asked for."""

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        calls = [getattr(item, "callspec", None) for item in request.session.items]
        asked = [(c.params.get("shape"), c.params.get("world", 2)) for c in calls if c]
        self.asked = [(shape, world) for shape, world in asked if isinstance(shape, Shape)]
        self.factory = factory
        self.done: dict[int, dict[str, Pair]] = {}

    def of(self, shape: Shape, world: int) -> Pair:
        if world not in self.done:
            wanted = [Wanted(s, world, s.converted, s.original) for s, w in dict.fromkeys(self.asked) if w == world]
            pairs = run_pairs(self.factory.mktemp(f"world{world}"), wanted)
            self.done[world] = {p.wanted.shape.name: p for p in pairs}
        return self.done[world][shape.name]


@pytest.fixture(scope="module")
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(request, tmp_path_factory)


@_each(CORE)
def test_two_ranks_have_the_numbers_of_one_process(shape: Shape, pairs: Pairs) -> None:
    assert not (found := differences(pairs.of(shape, 2))), "\n".join(found)


@pytest.mark.slow
@_each(s for s in SHAPES if s not in CORE)
def test_all_on_two_ranks(shape: Shape, pairs: Pairs) -> None:
    assert not (found := differences(pairs.of(shape, 2))), "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 3])
@_each(SHAPES)
def test_other_worlds(shape: Shape, world: int, pairs: Pairs) -> None:
    assert not (found := differences(pairs.of(shape, world))), "\n".join(found)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    shapes = [s for s in SHAPES if s.doubled]
    wanted = [Wanted(s, 2, s.conversion("scale"), changed(s.original, s.doubled)) for s in shapes]
    return {p.wanted.shape.name: p for p in run_pairs(tmp_path_factory.mktemp("scaled"), wanted)}


@_each(s for s in SHAPES if s.doubled)
def test_two_ranks_have_the_numbers_of_a_batch_twice_as_large(shape: Shape, scaled: dict[str, Pair]) -> None:
    assert not (found := differences(scaled[shape.name])), "\n".join(found)


# ---- the comparison can fail ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """A silent error that is put into a conversion, and a pattern of what tells it from the original."""

    error: str
    name: str
    changes: tuple[tuple[str, str], ...]
    seen: str

    @property
    def shape(self) -> Shape:
        return next(s for s in SHAPES if s.name == self.name)

    @property
    def texts(self) -> Texts:
        return changed(self.shape.converted, self.changes)


_LOSSES = r"backward \d+: .* and not"
DAMAGES = (
    Damage(
        "a count is one shard's",
        "accumulated_gradients",
        (("        [correct] = all_reduce_sum(correct)\n", ""),),
        r"right \d+/22, .* and not",
    ),
    Damage(
        "a training loss is one shard's",
        "accumulated_gradients",
        (("    [total] = all_reduce_mean(total)\n", ""),),
        "loss .* and not",
    ),
    Damage(
        "a mean is added up",
        "accumulated_gradients",
        (("[total] = all_reduce_mean(total)", "[total] = all_reduce_sum(total)"),),
        "loss .* and not",
    ),
    Damage(
        "a count becomes a float",
        "accumulated_gradients",
        (("return [s if f else int(s) for", "return [s for"),),
        r"right \d+\.0/22",
    ),
    Damage(
        "predictions of dicts that are moved item by item are one shard's",
        "batches_by_key",
        (("        found[:] = gather_in_order(found)\n        kinds[:] = gather_in_order(kinds)\n", ""),),
        "^'place .* and not",
    ),
    Damage(
        "a confusion matrix is one rank's",
        "counting_classes",
        (("        confusion.all_reduce()\n", ""),),
        "val .* and not",
    ),
    Damage(
        "the evaluation counts padding",
        "tiny_evaluation",
        (
            (
                "sampler=range(dist.get_rank(), len(val_set_2), dist.get_world_size())",
                "sampler=DistributedSampler(val_set_2, shuffle=False)",
            ),
        ),
        "test .* and not",
    ),
    Damage(
        "a sum of batch means is divided by one rank's number of batches",
        "inline_evaluation_csv",
        (
            (", batches = all_reduce_sum", ", batches = *all_reduce_sum"),
            ("correct, len(valid_dataloader))", "correct), len(valid_dataloader)"),
        ),
        "mean loss .* and not",
    ),
    Damage(
        "the parts of a network that trains itself go past the wrapper",
        "parts_that_train",
        (
            ('forward_through(model, "encoder", x)', "self.encoder(x)"),
            ('forward_through(model, "decoder", code)', "self.decoder(code)"),
        ),
        _LOSSES,
    ),
    Damage(
        "an evaluation divides by one rank's number of batches, that of its last index",
        "batches_counted",
        (
            ("total, worst, batches = all_reduce_sum", "total, worst, batches = *all_reduce_sum"),
            ("(total, worst, len(loader))\n", "(total, worst), len(loader)\n"),
        ),
        "^'epoch .* and not",
    ),
    Damage(
        "a ratio of each batch is taken of other batches",
        "ratios_of_batches",
        (
            (
                "one_loader = DataLoader(part, batch_sampler=val_batches)",
                "one_loader = DataLoader(part, 7, sampler=range(dist.get_rank(), len(part), dist.get_world_size()))",
            ),
        ),
        "^'one .* and not",
    ),
    Damage(
        "an evaluation by batch deals samples",
        "inline_evaluation_csv",
        (
            (
                "batch_sampler=val_batches",
                "batch_size=12, sampler=range(dist.get_rank(), len(valid_data), dist.get_world_size())",
            ),
        ),
        "mean loss .* and not",
    ),
    Damage(
        "each rank draws a split of its own",
        "made_in_one_statement",
        (("order = torch.randperm(count)", "order = torch.randperm(count).roll(dist.get_rank())"),),
        "held out points' and not",
    ),
    Damage(
        "set_epoch is forgotten",
        "sums_by_hand",
        (("    train_loader.sampler.set_epoch(epoch)\n", ""),),
        "the same order in each epoch",
    ),
    Damage(
        "every rank reads the whole set",
        "sums_by_hand",
        (
            ("sampler=DistributedSampler(train_set)", "shuffle=True"),
            ("    train_loader.sampler.set_epoch(epoch)\n", ""),
        ),
        r"pass 0: \d+ steps and not",
    ),
    Damage(
        "a sum is averaged",
        "sums_by_hand",
        (("(loss * dist.get_world_size()).backward()", "loss.backward()"),),
        _LOSSES,
    ),
    Damage(
        "the batch is not divided",
        "sums_by_hand",
        (("batch_size=per_process(batch_size)", "batch_size=batch_size"),),
        "steps and not",
    ),
    Damage(
        "the model is not wrapped",
        "sums_by_hand",
        (("net = DDP(net)\n", ""), ("net.module(", "net(")),
        _LOSSES,
    ),
    Damage(
        "the loss goes by the wrapper's module",
        "sums_by_hand",
        (("F.cross_entropy(net(a), b, reduction", "F.cross_entropy(net.module(a), b, reduction"),),
        _LOSSES,
    ),
    Damage(
        "the remainder of the accumulation makes no step",
        "accumulated_gradients",
        ((" or i + 1 == len(train_loader)", ""),),
        _LOSSES,
    ),
    Damage(
        "gradients are never exchanged",
        "accumulated_gradients",
        (("with nullcontext() if is_step else model.no_sync():", "with model.no_sync():"),),
        _LOSSES,
    ),
    Damage(
        "the last batches of an epoch keep their gradients and step",
        "accumulated_gradients",
        (("with nullcontext() if is_step else", "with nullcontext() if (i + 1) % ACCUM == 0 else"),),
        _LOSSES,
    ),
    Damage(
        "the first batch is exchanged and not the last",
        "accumulated_carried_over",
        (("with nullcontext() if is_step else", "with nullcontext() if step % args.accumulate == 0 else"),),
        _LOSSES,
    ),
    Damage(
        "a meter is one shard's",
        "meters_and_patience",
        (("    losses.all_reduce()\n    top.all_reduce()\n", "    top.all_reduce()\n"),),
        "train .* and not",
    ),
    Damage(
        "a meter's mean stays behind its sums",
        "meters_and_patience",
        (
            (
                "    losses.all_reduce()\n    top.all_reduce()\n",
                "    losses.sum, losses.count = all_reduce_sum(losses.sum, losses.count)\n    top.all_reduce()\n",
            ),
        ),
        "train .* and not",
    ),
    Damage(
        "an array is one shard's",
        "numbers_in_containers",
        (("        dist.all_reduce(torch.from_numpy(table))\n", ""),),
        "table .* and not",
    ),
    Damage(
        "a list of predictions is one shard's",
        "numbers_in_containers",
        (("        guesses[:] = gather_list(guesses)\n        truth[:] = gather_list(truth)\n", ""),),
        "pairs .* and not",
    ),
    Damage(
        "the predictions of an evaluation come in the order of the ranks",
        "evaluations_kept",
        (("        merged[rank::len(parts)] = part\n", "        merged = [v for p in parts for v in p]\n"),),
        "lists .* and not",
    ),
    Damage(
        "an array that grows in an evaluation is one shard's",
        "evaluations_grown",
        (("        labels = gather_rows(labels, loader.batch_sampler)\n", ""),),
        "cat .* and not",
    ),
    Damage(
        "the rows of an evaluation come in the order of the ranks",
        "evaluations_grown",
        (("whole.reshape(len(order), -1)[order]", "whole"),),
        "concatenate .* and not",
    ),
    Damage(
        "the rows of the other ranks' samples are zeros",
        "rows_by_index",
        (("        merge_rows(losses)\n", ""),),
        "epoch .* and not",
    ),
    Damage(
        "a loader made with options is read by every rank, and its counts are added up",
        "options_at_run_time",
        (
            (
                "counted = batches_of_rank(DataLoader(points(23, 2), **held))",
                "counted = DataLoader(points(23, 2), **held)",
            ),
        ),
        "right .* and not",
    ),
    Damage(
        "what a function counts in an evaluation is one shard's",
        "counted_by_helpers",
        (("        top1, top2, n = all_reduce_sum(top1, top2, n)\n", ""),),
        "tops .* and not",
    ),
    Damage(
        "the meter of an evaluation is one shard's",
        "evaluations_kept",
        (("        losses.all_reduce()\n", ""),),
        "meters .* and not",
    ),
    Damage(
        "a schedule counts one process's steps",
        "accumulated_carried_over",
        (("args.epochs * len(train_loader) //", "args.epochs * dist.get_world_size() * len(train_loader) //"),),
        "lr .* and not",
    ),
    Damage(
        "rank 0 alone steps the schedule",
        "accumulated_carried_over",
        (("            scheduler.step()", "            if is_main_process():\n                scheduler.step()"),),
        _LOSSES,
    ),
    Damage(
        "the sampler pads where the loader drops",
        "dropped_batches",
        (("DistributedSampler(train_set, drop_last=True)", "DistributedSampler(train_set)"),),
        "8 steps and not 7",
    ),
    Damage(
        "an output that is shown behind the loop is of one rank's rows",
        "steps_first_sums",
        (("all_guess = rows_of_all(guess)", "all_guess = guess"),),
        "guesses.* and not",
    ),
    Damage(
        "a sum over the rows is one rank's",
        "steps_first_sums",
        (("(loss * dist.get_world_size()).backward()", "loss.backward()"),),
        _LOSSES,
    ),
    Damage(
        "the weight of a mean over more rows is left out",
        "heads_over_sentences",
        (("(loss * row_weight).backward()", "loss.backward()"),),
        _LOSSES,
    ),
    Damage(
        "one rank stops early by its own loss",
        "best_weights_in_memory",
        (("        squared, count = all_reduce_sum(squared, count)\n", ""),),
        # how it ends depends on which rank gives up first: gloo may meet two collectives of different sizes
        "and not|Connection|backward passes|EnforceNotMet",
    ),
)


@pytest.fixture(scope="module")
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [c.params["damage"] for c in calls if c and "damage" in c.params]
    wanted = [Wanted(d.shape, 2, d.texts, d.shape.original, str(number)) for number, d in enumerate(asked)]
    return dict(zip((d.error for d in asked), run_pairs(tmp_path_factory.mktemp("damaged"), wanted), strict=True))


@pytest.mark.parametrize("damage", [pytest.param(d, id=d.error.replace(" ", "-")) for d in DAMAGES])
def test_a_silent_error_is_seen(damage: Damage, damaged: dict[str, Pair]) -> None:
    found = differences(damaged[damage.error])
    assert any(re.search(damage.seen, line) for line in found), found
