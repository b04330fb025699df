"""DDP103: a device that is put together from text loses its index as a whole."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script


@pytest.mark.parametrize("device", ["'cuda:{}'.format(gpu)", "'cuda:%d' % gpu", "'cuda:' + str(gpu)", "'cuda:0'"])
def test_a_device_made_of_text(device: str) -> None:
    text = script(imports="gpu = 0").replace(
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        f"def choose():\n    if torch.cuda.is_available():\n        place = torch.device({device})\n    else:\n"
        "        place = torch.device('cpu')\n    return place\n\ndevice = choose()",
    )
    assert "torch.device('cuda')\n" in edited(text, "DDP103").text


def test_text_stays_text_above_the_line_that_makes_it_a_device() -> None:
    text = script(imports="").replace(
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        'device = "cuda" if torch.cuda.is_available() else "cpu"\nprint(device.upper())\ndevice = torch.device(device)',
    )
    assert "print(device.upper())\n" in edited(text, "DDP103").text


GIVEN = """
import argparse
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def moved(batch, gpu):
    batch["x"] = batch["x"].cuda(gpu)
    return batch

def train(args):
    net = nn.Linear(4, 1)
    MOVE
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2):
            BATCH
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()

def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    command = commands.add_parser("train")
    command.add_argument("--gpu", type=int, default=-1)
    command.set_defaults(handler=train)
    args = parser.parse_args()
    config = json.load(open("config.json"))
    args.handler(args)

main()
"""


def test_a_gpu_that_is_given_goes_the_set_up_has_bound_the_process_to_its_own() -> None:
    """`--gpu 0` put all ranks on one GPU."""
    text = GIVEN.replace("MOVE", "net.cuda(args.gpu)").replace("BATCH", 'x = moved({"x": x}, args.gpu)["x"]')
    done = edited(text, "DDP103").text
    assert "    net.cuda()\n" in done
    assert 'batch["x"].cuda()\n' in done


def test_a_device_that_comes_from_a_file_is_told_of() -> None:
    text = GIVEN.replace("MOVE", 'net.to(json.load(open("config.json"))["device"])').replace("BATCH", "pass")
    found = edited(text, "DDP103")
    assert any("with an index (`cuda:0`, `0`) it would be one GPU" in message for message in found.left)
    assert "net.to(json.load" in found.text
