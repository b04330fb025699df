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
