"""DDP402: all that a user sees is there once, and every rank still does its share of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.edited import edited, linted, script

CODE = "DDP402"
WRITER = "from torch.utils.tensorboard import SummaryWriter as Board"


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("", "print('epoch', epoch)"),
        ("", "print()"),
        ("import builtins as b", "b.print(epoch)"),
        ("import functools\nsay = functools.partial(print, flush=True)", "say(epoch)"),
        ("from pprint import pprint as show", "show({'epoch': epoch})"),
        ("import sys", "sys.stdout.write('x')"),
        ("from sys import stderr", "print('x', file=stderr)"),
        ("import logging", "logging.info('epoch %d', epoch)"),
        ("import logging as log\nlogger = log.getLogger(__name__)", "logger.warning('x')"),
        ("import wandb\nkept = wandb.Artifact('net', type='model')", "kept.add_file('net.pt')"),
        ("import logging, time\nlogger = logging.getLogger(time.strftime('%H'))", "logger.info('x')"),
        ("from loguru import logger", "logger.info('x')"),
        ("import matplotlib.pyplot as plt", "plt.show(block=False)"),
        ("from tqdm import tqdm as bar", "bar.write('x')"),
        ("from IPython.display import display", "display(loss)"),
        ("import tqdm\nsteps = tqdm.tqdm(total=3)", "steps.write('x')"),
        ("", "[print(e) for e in range(3)]"),
        ("", "print(f'{loss.item():.3f}', end='')"),
        ("", "print(f'{torch.backends.mps.is_built()=}')"),
        ("", "print('cudnn', torch.backends.cudnn.version())"),
    ],
)
def test_a_statement_that_talks_is_guarded(imports: str, statement: str) -> None:
    result = edited(script(imports=imports, inside=statement), CODE)
    assert result.has(f"if is_main_process():\n    {statement}")
    assert not result.left


@pytest.mark.parametrize(
    "statement",
    ["warnings.warn('x')", "text = str(epoch)", "model.train()", "print = None", "logging.getLogger('x').setLevel(10)"],
)
def test_what_says_nothing_stays(statement: str) -> None:
    text = script(imports="import warnings, logging", inside=statement)
    result = edited(text, CODE)
    assert result.text == text
    assert not result.left


@pytest.mark.parametrize(
    ("statement", "gives"),
    [
        (
            "print('score', evaluate(model, loader))",
            "result = evaluate(model, loader)\nif is_main_process():\n    print('score', result)",
        ),
        (
            "print(f'score {evaluate(model, loader):.2f}')",
            "result = evaluate(model, loader)\nif is_main_process():\n    print(f'score {result:.2f}')",
        ),
        (
            "print(model(x.to(device)).mean().item())",
            "result = model(x.to(device))\nif is_main_process():\n    print(result.mean().item())",
        ),
        ("print(optimizer.step())", "result = optimizer.step()\nif is_main_process():\n    print(result)"),
        (
            "print(queue.pop(), next(iter(loader)))",
            "result = queue.pop()\nresult_2 = next(iter(loader))\nif is_main_process():\n    print(result, result_2)",
        ),
        ("print(count(1))", "result = count(1)\nif is_main_process():\n    print(result)"),
        (
            "print(evaluate(model, loader) if epoch else 0)",
            "result = evaluate(model, loader) if epoch else 0\nif is_main_process():\n    print(result)",
        ),
        (
            "print(sum(model(x).sum() for (x,) in loader))",
            "result = sum(model(x).sum() for (x,) in loader)\nif is_main_process():\n    print(result)",
        ),
        (
            "print([model(x).sum() for (x,) in loader])",
            "result = [model(x).sum() for (x,) in loader]\nif is_main_process():\n    print(result)",
        ),
        ("print(torch.rand(3))", "result = torch.rand(3)\nif is_main_process():\n    print(result)"),
    ],
)
def test_work_in_the_arguments_is_done_by_every_rank(statement: str, gives: str) -> None:
    functions = """
        calls = 0

        def count(by):
            global calls
            calls += by
            return calls
        """
    result = edited(script(functions=functions, before="queue = [1, 2]", inside=statement), CODE)
    assert result.has(gives), result.text


@pytest.mark.parametrize(
    "statement",
    [
        "print(text(3))",
        "print(optimizer.state_dict())",
        "print(model.weight.norm())",
        "print(nn.functional.mse_loss(x, x))",
        "print(Meter().show(2))",
    ],
)
def test_pure_calls_stay_in_the_message(statement: str) -> None:
    functions = """
        def text(n):
            parts = []
            for i in range(n):
                parts.append(str(i))
            return " ".join(parts)

        class Meter:
            def __init__(self):
                self.sum = 0

            def show(self, by):
                return str(self.sum + by)
        """
    result = edited(script(functions=functions, inside=statement), CODE)
    assert result.has(f"if is_main_process():\n    {statement}")


@pytest.mark.parametrize(
    "statement",
    [
        "done = print('x')",
        "_ = print('x') or epoch",
        "show = lambda: print(model(torch.ones(1, 4)))",
        "if print('x') or epoch:\n    pass",
        "print(f'{evaluate(model, loader)=}')",
        "print(*(model(x).sum() for (x,) in loader))",
        "print(last := epoch)",
    ],
)
def test_what_cannot_be_guarded_is_left(statement: str) -> None:
    after = "total = (done, _)" if "=" in statement[:7] else "total = 1"
    before = "done = _ = last = 0"
    result = edited(
        script(before=before, inside=statement + ("\nshow()" if "show" in statement else ""), after=after), CODE
    )
    assert len(result.left) == 1, result.left
    assert "is_main_process" not in result.text


def test_a_body_on_one_line_gets_a_line_of_its_own() -> None:
    result = edited(script(inside="if epoch: print('x')\nelse: pass"), CODE)
    assert result.has("if epoch:\n    if is_main_process():\n        print('x')\nelse: pass")


def test_a_print_in_a_module_or_a_dead_function_is_guarded() -> None:
    functions = """
        class Net(nn.Module):
            def forward(self, x):
                print(x.shape)
                return x

        def unused():
            print("unused")
        """
    result = edited(script(functions=functions, before="net = Net()", inside="net(x)"), CODE)
    assert result.has("if is_main_process():\n    print(x.shape)")
    assert result.has('if is_main_process():\n    print("unused")')


def test_prints_in_another_file_are_guarded_there(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def show(x):\n    print(x)\n    return x\n")
    result = edited(
        script(imports="from helpers import show", inside="value = show(1)"), CODE, path=tmp_path / "train.py"
    )
    assert result.guarded("helpers.py") == ["if is_main_process(): print(x)"]


def test_prints_in_a_package_are_listed_once_per_function(tmp_path: Path) -> None:
    (tmp_path / "helpers").mkdir()
    functions = "def two(x):\n    print(1)\n    print(2)\n    return x\n\n\ndef show(x):\n    print(x)\n"
    (tmp_path / "helpers" / "__init__.py").write_text(f"{functions}\nHERE = __path__\n")
    text = script(imports="from helpers import show, two", inside="value = two(1)\nshow(value)")
    result = edited(text, CODE, path=tmp_path / "train.py")
    assert result.has("if is_main_process():\n    show(value)")
    assert len(result.left) == 1
    assert "lines 2, 3" in result.left[0]


def test_a_writer_that_another_file_uses(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def note(board, x):\n    board.add_scalar('x', x)\n")
    text = script(imports=WRITER + "\nfrom helpers import note", before="board = Board()", inside="note(board, epoch)")
    result = edited(text, CODE, path=tmp_path / "train.py")
    assert "board = Board() if is_main_process() else None" in result.text
    assert result.guarded("helpers.py") == ["if is_main_process(): board.add_scalar('x', x)"]


@pytest.mark.parametrize(
    ("bar", "gives"),
    [
        ("tqdm(range(3))", "tqdm(range(3), disable=not is_main_process())"),
        ("tqdm(range(3), disable=False)", "tqdm(range(3), disable=not is_main_process())"),
        ("tqdm(range(3), disable=quiet)", "tqdm(range(3), disable=quiet if is_main_process() else True)"),
        ("tqdm(range(3), disable=not loud)", "tqdm(range(3), disable=not loud or not is_main_process())"),
        ("tqdm(range(3), disable=None)", "tqdm(range(3), disable=None if is_main_process() else True)"),
        ("trange(3, **dict(desc='x'))", "trange(3, disable=not is_main_process(), **dict(desc='x'))"),
    ],
)
def test_a_bar_is_shown_by_one_rank(bar: str, gives: str) -> None:
    text = script(
        imports="import sys\nfrom tqdm import tqdm, trange\nquiet, loud = sys.argv[1:]",
        inside=f"for i in {bar}:\n    pass",
    )
    result = edited(text, CODE)
    assert f"for i in {gives}:" in result.text
    assert not result.left


def test_a_bar_whose_arguments_are_unknown_is_left() -> None:
    text = script(
        imports="import json\nfrom tqdm import tqdm\noptions = json.load(open('a.json'))",
        inside="for i in tqdm(range(3), **options):\n    pass",
    )
    assert len(edited(text, CODE).left) == 1


def test_a_writer_is_none_on_the_other_ranks() -> None:
    functions = """
        def note(board, value):
            if board is not None:
                board.add_scalar("loss", value)
        """
    text = script(
        imports=WRITER,
        functions=functions,
        before="board = Board('runs')",
        inside="note(board, loss.item())",
        after="board.close()",
    )
    result = edited(text, CODE)
    assert "board = Board('runs') if is_main_process() else None" in result.text
    assert result.has('if is_main_process():\n    board.add_scalar("loss", value)')
    assert result.has("if is_main_process():\n    board.close()")
    assert result.has("    note(board, loss.item())")


def test_what_a_writer_is_given_is_computed_by_every_rank() -> None:
    result = edited(
        script(
            imports=WRITER, before="board = Board()", inside="board.add_scalar('score', evaluate(model, loader), epoch)"
        ),
        CODE,
    )
    assert result.has(
        "result = evaluate(model, loader)\nif is_main_process():\n    board.add_scalar('score', result, epoch)"
    )


@pytest.mark.parametrize(
    ("imports", "call", "uses"),
    [
        (WRITER, "Board('runs')", ["kept.add_scalar('x', epoch)"]),
        ("import mlflow", "mlflow.start_run(run_name='a')", ["print(kept.info.run_id)", "mlflow.log_metric('x', 1)"]),
        ("import neptune", "neptune.init_run()", ["kept['lr'] = 0.1", "kept['loss'].append(loss.item())"]),
        ("from aim import Run", "Run()", ["kept.track(loss.item(), name='loss')"]),
        ("from rich.live import Live", "Live('text')", ["kept.update('more')"]),
    ],
)
def test_what_one_rank_has_is_used_by_it_alone(imports: str, call: str, uses: list[str]) -> None:
    block = "\n".join("    " + use for use in uses)
    guarded = "if is_main_process():\n" + block
    result = edited(script(imports=imports, before=f"kept = {call}", inside="\n".join(uses)), CODE)
    assert not result.left
    assert f"kept = {call} if is_main_process() else None" in result.text
    assert result.has(guarded)
    opened = edited(
        script(imports=imports, after=f"with {call} as kept:\n    score = evaluate(model, loader)\n{block}"), CODE
    )
    assert not opened.left
    assert opened.has(
        f"with {call} if is_main_process() else nullcontext() as kept:\n    score = evaluate(model, loader)"
    )
    assert "nullcontext" in opened.needs


def test_a_run_of_which_every_rank_needs_something_is_left() -> None:
    text = script(imports="import mlflow", after="with mlflow.start_run() as run:\n    kept = [run]")
    assert len(edited(text, CODE).left) == 1
    text = script(imports="import mlflow", after="with mlflow.start_run(run_name=str(next(iter(loader)))):\n    pass")
    assert len(edited(text, CODE).left) == 1


@pytest.mark.parametrize("asked", ["writer.log_dir", "writer.file_writer.get_logdir()"])
def test_a_path_of_the_writers_folder_is_told_to_all(asked: str) -> None:
    before = (
        f"writer = SummaryWriter()\npath = os.path.join({asked}, 'best.pt')\nif len(path) > 80:\n    os.chdir('..')"
    )
    result = edited(script(imports="from torch.utils.tensorboard import SummaryWriter", before=before), CODE)
    assert result.has("writer = SummaryWriter() if is_main_process() else None")
    assert f"path = os.path.join(broadcast_value({asked} if is_main_process() else None), 'best.pt')" in result.text
    assert not result.left


def test_every_rank_is_told_the_name_of_the_run() -> None:
    after = (
        "with mlflow.start_run() as run:\n    name = run.info.run_id\n    os.makedirs(f'runs/{name}', exist_ok=True)"
    )
    result = edited(script(imports="import mlflow", after=after), "DDP101", CODE)
    assert "    name = broadcast_value(run.info.run_id if is_main_process() else None)\n" in result.text
    assert not result.left
    early = script(imports="import mlflow\nrun = mlflow.start_run()\nname = run.info.run_id\nos.listdir(name)")
    assert len(edited(early, "DDP101", CODE).left) == 1  # before the set-up nobody can be told


@pytest.mark.parametrize(
    ("made", "gives"),
    [
        ("Console()", "Console(quiet=not is_main_process())"),
        ("Console(stderr=True, quiet=False)", "Console(stderr=True, quiet=not is_main_process())"),
        ("Console(quiet=bool(os.environ))", "Console(quiet=bool(os.environ) or not is_main_process())"),
    ],
)
def test_a_console_of_another_rank_is_quiet(made: str, gives: str) -> None:
    uses = "console.rule('x')\nconsole.print(evaluate(model, loader))\nwith console.status('working'):\n    pass"
    result = edited(script(imports="from rich.console import Console", before=f"console = {made}", inside=uses), CODE)
    assert f"console = {gives}\n" in result.text
    assert result.has(uses)
    assert not result.left


def test_a_display_of_rich_and_its_console() -> None:
    inside = """
        with Progress("{task.description}", transient=True) as progress:
            task = progress.add_task("steps", total=3)
            for (y,) in progress.track(loader):
                progress.console.print(y.sum())
                progress.update(task, advance=1)
        """
    result = edited(script(imports="from rich.progress import Progress", inside=inside), CODE)
    assert 'Progress("{task.description}", transient=True, disable=not is_main_process())' in result.text
    assert result.has(
        "    if is_main_process():\n        progress.console.print(y.sum())\n    progress.update(task, advance=1)"
    )
    assert not result.left


def test_a_console_that_is_quiet_by_rank() -> None:
    start = "import torch.distributed as dist\nfrom rich.console import Console\n"
    said = "\nconsole.print('x')\nconsole.log('x')"
    assert len(linted(f"{start}console = Console(){said}", CODE)) == 2
    assert not linted(f"{start}console = Console(quiet=dist.get_rank() != 0){said}", CODE)


@pytest.mark.parametrize(
    "use",
    [
        "for name in os.listdir(board.log_dir):\n    os.chdir(name)",
        "boards = [board]",
        "with board:\n    pass",
        "keep = {'b': board}",
    ],
)
def test_a_writer_that_is_used_otherwise_is_left(use: str) -> None:
    text = script(imports=WRITER, before="board = Board()", inside=use)
    result = edited(text, CODE)
    assert len(result.left) == 1
    assert result.text == text


@pytest.mark.parametrize(
    ("call", "gives"),
    [
        ("wandb.init(project='p')", "wandb.init(project='p', mode=None if is_main_process() else \"disabled\")"),
        ("wandb.init(mode=chosen)", 'wandb.init(mode=chosen if is_main_process() else "disabled")'),
    ],
)
def test_one_rank_starts_the_run(call: str, gives: str) -> None:
    text = script(
        imports="import sys, wandb\nchosen = sys.argv[1]",
        before=f"run = {call}",
        inside="wandb.log({'score': evaluate(model, loader)})",
    )
    result = edited(text, CODE)
    assert f"run = {gives}" in result.text
    assert result.has("    wandb.log({'score': evaluate(model, loader)})")


def test_a_log_file_is_written_by_one_rank() -> None:
    before = (
        "logging.basicConfig(filename='a.log')\nhandler = logging.FileHandler('b.log')\n"
        "handler.setLevel(10)\nlogging.getLogger().addHandler(handler)"
    )
    result = edited(script(imports="import logging", before=before), CODE)
    assert result.has("if is_main_process():\n" + "\n".join("    " + line for line in before.split("\n")))


@pytest.mark.parametrize(
    ("settings", "call", "guarded"),
    [
        ("{'version': 1, 'handlers': {'f': {'class': 'logging.FileHandler', 'filename': 'a.log'}}}", "", True),
        ("json.load(open('logging.json'))", "", True),
        ("'logging.ini'", "logging.config.fileConfig(settings)", True),
        ("{'version': 1, 'root': {'level': 'INFO'}}", "", False),
    ],
)
def test_settings_with_log_files_are_for_one_rank(settings: str, call: str, guarded: bool) -> None:
    call = call or "logging.config.dictConfig(settings)"
    result = edited(script(imports="import json\nimport logging.config", before=f"settings = {settings}\n{call}"), CODE)
    assert result.has(f"if is_main_process():\n    {call}") is guarded
    assert not result.left


def test_the_user_is_asked_once() -> None:
    result = edited(script(before="name = input('name? ')", after="input('done')"), CODE)
    assert "name = broadcast_value(input('name? ') if is_main_process() else None)" in result.text
    assert result.has("if is_main_process():\n    input('done')")


def test_a_question_before_the_set_up_is_left() -> None:
    result = edited(script(imports="name = input('name? ')"), CODE)
    assert len(result.left) == 1
    assert "before the process group is set up" in result.left[0]


def test_a_command_is_left() -> None:
    assert len(edited(script(imports="import os", after="os.system('ls')"), CODE).left) == 1


def test_a_summary_before_an_unseeded_split_is_left() -> None:
    imports = "from torchsummary import summary\nfrom torch.utils.data import random_split"
    before = "summary(model, (4,))"
    assert edited(script(imports=imports, before=before), CODE).has("if is_main_process():\n    summary(model, (4,))")
    left = edited(script(imports=imports, before=before + "\na, b = random_split(range(8), [4, 4])"), CODE).left
    assert len(left) == 1
    assert "random" in left[0]


def test_print_to_a_file_that_is_null_elsewhere_needs_no_guard() -> None:
    text = script(before="log = open('a.txt', 'w')\nfiles = [log]", inside="print('x', file=log)")
    result = edited(text, "DDP401", CODE)
    assert "log = open('a.txt' if is_main_process() else os.devnull, 'w')" in result.text
    assert result.has("    print('x', file=log)")
    assert "if is_main_process():" not in result.text


DDP = """
import logging
import os
import builtins
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

rank = dist.get_rank()
"""


@pytest.mark.parametrize(
    "code",
    [
        "print(f'rank {rank}')",
        "if rank == 0:\n    print('x')",
        "if not rank:\n    print('x')",
        "for i in tqdm(range(3), disable=rank > 0):\n    pass",
        "for i in (tqdm(range(3)) if rank == 0 else range(3)):\n    pass",
        "def quiet(*a):\n    pass\nif rank != 0:\n    builtins.print = quiet\nprint('x')",
        "logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR)\nlogging.info('x')",
        "writer = SummaryWriter() if rank == 0 else None\nif writer is not None:\n    writer.add_scalar('a', 1)",
        "writer = None\nif rank == 0:\n    writer = SummaryWriter()\nif writer:\n    print('x')",
    ],
)
def test_lint_is_content(code: str) -> None:
    assert not linted(DDP + code, CODE)


@pytest.mark.parametrize(
    "code",
    [
        "print('x')",
        "if dist.get_world_size() > 1:\n    print('x')",
        "for i in tqdm(range(3)):\n    pass",
        "for i in tqdm(range(3), disable=False):\n    pass",
        "logging.info('x')",
        "writer = SummaryWriter()",
    ],
)
def test_lint_reports(code: str) -> None:
    assert len(linted(DDP + code, CODE)) == 1


FIRE = """
import fire
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def fit(epochs=2):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for (x,) in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
    return loss.item()

{call}
"""


@pytest.mark.parametrize("call", ["fire.Fire(fit)", "fire.Fire()", 'fire.Fire({"fit": fit})'])
def test_fire_prints_what_comes_back(call: str) -> None:
    assert edited(FIRE.format(call=call), CODE).has("return loss.item() if is_main_process() else None")


def test_what_fire_runs_and_the_script_too() -> None:
    text = FIRE.format(call="def main():\n    print(fit(3) + 1)\n\nfire.Fire({'fit': fit, 'main': main})")
    assert "return loss.item()\n" in edited(text, CODE).text


def test_a_writer_behind_an_option_that_one_branch_switches_off() -> None:
    """`args.log = False` where a library is missing: the uses of the writer were taken for dead, and met None."""
    before = """
    args = argparse.ArgumentParser().parse_args()
    if not available:
        args.log = False
    config = {"log": args.log}
    writer = SummaryWriter() if config["log"] else None
    """
    found = "try:\n    from tensorboardX import SummaryWriter\n    available = True\n"
    found += "except ImportError:\n    available = False"
    use = 'if config["log"]:\n    writer.add_scalar("loss", loss.item(), epoch)'
    result = edited(script(imports=f"import argparse\n{found}", before=before, inside=use), CODE)
    assert result.has('if is_main_process():\n    writer.add_scalar("loss", loss.item(), epoch)')


def test_event_files_of_tensorflow_are_one_process_s() -> None:
    """The logger class of many tutorials: each rank wrote a file of events beside rank 0's."""
    logger = """
    class Log:
        def __init__(self, folder):
            self.writer = tf.summary.FileWriter(folder)

        def image(self, picture, step):
            for _ in range(2):
                buffer = BytesIO()
                scipy.misc.toimage(picture).save(buffer, format="png")
                self.writer.add_summary(buffer.getvalue(), step)
    """
    imports = "import scipy.misc\nimport tensorflow as tf\nfrom io import BytesIO"
    text = script(imports=imports, functions=logger, before='log = Log("logs")', inside="log.image(x.numpy(), epoch)")
    result = edited(text, CODE, "DDP401")
    assert result.has("self.writer = tf.summary.FileWriter(folder) if is_main_process() else None")
    assert result.has("""
        scipy.misc.toimage(picture).save(buffer, format="png")
        if is_main_process():
            self.writer.add_summary(buffer.getvalue(), step)
        """)


def test_what_fire_could_run_and_the_training_needs() -> None:
    """`fire.Fire()` offers all functions of the module: a loss that is None on the other ranks ended the job there."""
    text = FIRE.format(call="def join(rows):\n    return torch.stack([x for (x,) in rows]), 1\n\nfire.Fire()")
    loaded = text.replace("batch_size=2)", "batch_size=2, collate_fn=join)").replace("for (x,) in l", "for x, _ in l")
    found = edited(loaded, CODE)
    assert found.has("return torch.stack([x for (x,) in rows]), 1")
    assert found.has("return loss.item() if is_main_process() else None")


@pytest.mark.parametrize("code", ["exec(open('settings.py').read())", "import runpy\nrunpy.run_path('settings.py')"])
def test_code_that_cannot_be_seen(code: str) -> None:
    (message,) = edited(script(before=code), CODE).left
    assert "every rank runs code of its own" in message


@pytest.mark.parametrize(("code", "guarded"), [("1", False), ("'diverged'", False), ("0", True), ("", True)])
def test_last_words(code: str, guarded: bool) -> None:
    """A rank that dies says why, whichever it is; where all of them leave, one speaks."""
    inside = f"if loss.item() > 9:\n    print('stop')\n    sys.exit({code})"
    text = edited(script(imports="import sys", inside=inside), CODE).text
    assert ("if is_main_process():" in text) is guarded


def test_a_lambda_that_prints() -> None:
    result = edited(script(before="say = lambda text: print(text)", inside="say('step')"), CODE)
    assert not result.left
    assert result.has("say = lambda text: print(text) if is_main_process() else None")


def test_a_writer_that_is_handed_back_with_others() -> None:
    prepare = """
    from torch.utils.tensorboard import SummaryWriter

    def prepare(root):
        writer = SummaryWriter(root) if root else None
        return root, writer
    """
    result = edited(
        script(
            functions=prepare,
            before="root, writer = prepare('runs')",
            inside="if writer is not None:\n    writer.add_scalar('loss', loss.item(), epoch)",
        ),
        CODE,
    )
    assert not result.left
    assert result.has("writer = (SummaryWriter(root) if is_main_process() else None) if root else None")
    assert result.has("    if is_main_process():\n        writer.add_scalar('loss', loss.item(), epoch)")


@pytest.mark.parametrize(
    ("statement", "gives"),
    [
        (
            "print('accuracy', float(metric.compute()))",
            "result = metric.compute()\nif is_main_process():\n    print('accuracy', float(result))",
        ),
        ("show(metric.compute())", "    show(metric.compute())"),  # show guards its own print
    ],
)
def test_a_metric_that_asks_the_other_ranks_is_computed_on_all(statement: str, gives: str) -> None:
    """torchmetrics gathers in `compute()`: under a guard, rank 0 would wait for ever."""
    result = edited(
        script(
            imports="import torchmetrics",
            functions="def show(text):\n    print(text)",
            before="metric = torchmetrics.MeanMetric().to(device)",
            inside=f"metric.update(loss)\n{statement}",
        ),
        CODE,
    )
    assert result.has(gives)
    assert not result.left


NAMED = "writer = Board('runs/%d' % random.randint(0, 100))"


def test_what_names_a_writer_is_drawn_on_every_rank() -> None:
    """Drawn by rank 0 alone, it left that one stream a number ahead, and each rank split the data in its own way."""
    imports = f"import random\n{WRITER}\nrandom.seed(0)"
    result = edited(script(imports=imports, before=NAMED, inside="writer.add_scalar('loss', loss.item())"), CODE)
    assert result.has(
        """
        result = random.randint(0, 100)
        writer = Board('runs/%d' % result) if is_main_process() else None
        """
    )


def test_what_no_seed_fixes_is_drawn_by_the_rank_that_needs_it() -> None:
    imports = f"import random\n{WRITER}"
    result = edited(script(imports=imports, before=NAMED, inside="writer.add_scalar('loss', loss.item())"), CODE)
    assert f"{NAMED} if is_main_process() else None" in result.text


def test_a_writer_in_a_dict_is_guarded_by_its_key() -> None:
    before = "held = {'writer': Board(), 'steps': 0}"
    inside = "held['writer'].add_scalar('loss', loss.item(), held['steps'])\nheld['steps'] += 1"
    result = edited(script(imports=WRITER, before=before, inside=inside, after="held['writer'].close()"), CODE)
    assert result.has("held = {'writer': (Board() if is_main_process() else None), 'steps': 0}")
    assert result.has("if is_main_process():\n    held['writer'].add_scalar('loss', loss.item(), held['steps'])")
    assert result.has("held['steps'] += 1")
    assert result.has("if is_main_process():\n    held['writer'].close()")
    assert not result.left


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        (
            "line = panel.line([loss.item()], [epoch])\npanel.line([1], [epoch], win=line)",
            "line = panel.line([loss.item()], [epoch]) if is_main_process() else None\n"
            "if is_main_process():\n    panel.line([1], [epoch], win=line)",
        ),
        (
            "line = panel.line([loss.item()], [epoch])\nos.environ['LINE'] = line",
            "line = broadcast_value(panel.line([loss.item()], [epoch]) if is_main_process() else None)",
        ),
        (
            "if line is None:\n    line = panel.line([1], [epoch])\nelse:\n    panel.line([1], win=line)",
            "    line = panel.line([1], [epoch]) if is_main_process() else None\nelse:\n"
            "    if is_main_process():\n        panel.line([1], win=line)",
        ),
    ],
)
def test_what_a_display_gives_back_is_asked_of_rank_0s(inside: str, wanted: str) -> None:
    result = edited(script(imports="import visdom", before="panel, line = visdom.Visdom(), None", inside=inside), CODE)
    assert result.has(wanted)
    assert not result.left
