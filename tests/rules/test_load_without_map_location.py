"""DDP105: checkpoints are loaded onto the rank's own device."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, linted, script

CODE = "DDP105"


@pytest.mark.parametrize(
    ("call", "gives"),
    [
        ("torch.load('a.pt')", "torch.load('a.pt', map_location=device)"),
        ("torch.load('a.pt', weights_only=True)", "torch.load('a.pt', weights_only=True, map_location=device)"),
        ("torch.load('a.pt', map_location='cuda:0')", "torch.load('a.pt', map_location=device)"),
        ("torch.load('a.pt', 'cuda:1')", "torch.load('a.pt', device)"),
        ("torch.load('a.pt', map_location=torch.device('cuda:0'))", "torch.load('a.pt', map_location=device)"),
        ("torch.load('a.pt', map_location={'cuda:1': 'cuda:0'})", "torch.load('a.pt', map_location=device)"),
        (
            "torch.load('a.pt', map_location='cuda:0' if torch.cuda.is_available() else 'cpu')",
            "torch.load('a.pt', map_location=device)",
        ),
        (
            "torch.load('a.pt', map_location=lambda storage, loc: storage.cuda(0))",
            "torch.load('a.pt', map_location=device)",
        ),
        ("torch.load('a.pt', map_location=None)", "torch.load('a.pt', map_location=device)"),
    ],
)
def test_the_script_own_device_is_used(call: str, gives: str) -> None:
    assert f"state = {gives}" in edited(script(before=f"state = {call}"), CODE).text


@pytest.mark.parametrize(
    "given",
    ["'cpu'", "device", "'cuda'", "lambda storage, where: storage", "lambda storage, where: storage.cuda()"],
)
def test_what_says_where_stays(given: str) -> None:
    text = script(before=f"state = torch.load('a.pt', map_location={given})")
    assert edited(text, CODE).text == text


@pytest.mark.parametrize(
    "use",
    [
        "torch.set_rng_state(state['rng'])",
        "rng = state['rng']\ntorch.random.set_rng_state(rng['torch'])",
        "if state['cuda'] is not None:\n    torch.cuda.set_rng_state_all(state['cuda'])",
        "g = torch.Generator()\ng.set_state(state['g'])",
        "def restore(rng):\n    torch.set_rng_state(rng)\nrestore(state['rng'])",
    ],
)
def test_the_state_of_a_generator_stays_on_the_cpu(use: str) -> None:
    result = edited(script(before=f"state = torch.load('a.pt')\nother = torch.load('b.pt')\n{use}"), CODE)
    assert result.has(
        "state = torch.load('a.pt', map_location=\"cpu\")\nother = torch.load('b.pt', map_location=device)"
    )


def test_the_name_that_is_known_there() -> None:
    functions = """
        def restore(path, where):
            return torch.load(path)

        def start(path):
            return torch.load(path)

        class Trainer:
            def __init__(self, gpu):
                self.gpu = gpu
                self.state = torch.load("b.pt")

            def again(self):
                return torch.load("b.pt")
        """
    before = "one = restore('a.pt', device)\ntwo = start('a.pt')\nthree = Trainer(device).again()"
    result = edited(script(functions=functions, before=before), CODE)
    assert result.has("def restore(path, where):\n    return torch.load(path, map_location=where)")
    assert result.has("def start(path):\n    return torch.load(path, map_location=device)")
    assert result.has('self.state = torch.load("b.pt", map_location=gpu)')


def test_no_device_is_known_there() -> None:
    result = edited(script(imports="state = torch.load('a.pt')"), CODE)
    assert "state = torch.load('a.pt', map_location=\"cpu\")" in result.text


def test_data_for_a_dataset_stay_on_the_cpu() -> None:
    before = "blob = torch.load('data.pt')\nx = blob['x']\nmore = DataLoader(TensorDataset(x), batch_size=2)"
    assert "torch.load('data.pt', map_location=\"cpu\")" in edited(script(before=before), CODE).text


def test_a_script_without_gpus_is_left_alone() -> None:
    text = script(before="state = torch.load('a.pt')").replace(
        'torch.device("cuda" if torch.cuda.is_available() else "cpu")', '"cpu"'
    )
    assert edited(text, CODE).text == text


@pytest.mark.parametrize(
    ("call", "count"),
    [("torch.load('a')", 1), ("torch.load('a', map_location='cpu')", 0), ("torch.load('a', map_location='cuda:0')", 1)],
)
def test_lint(call: str, count: int) -> None:
    code = "import torch\nimport torch.distributed as dist\ntorch.cuda.set_device(dist.get_rank())\n"
    code += f"net = torch.nn.Linear(1, 1)\nstate = {call}\nnet.load_state_dict(state)"
    assert len(linted(code, CODE)) == count


@pytest.mark.parametrize(
    ("first", "then", "place"),
    [("self.resume()", "self.device = 'cuda'", '"cpu"'), ("self.device = 'cuda'", "self.resume()", "self.device")],
)
def test_a_device_that_the_object_gets_later_is_not_asked_for(first: str, then: str, place: str) -> None:
    code = f"""
        class Trainer:
            def __init__(self):
                {first}
                {then}
            def resume(self):
                self.state = torch.load("a.pt")
        Trainer()
        """
    text = script(before=code).replace(".to(device)", "")
    text = text.replace('device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', "")
    assert edited(text, CODE).has(f'self.state = torch.load("a.pt", map_location={place})')
