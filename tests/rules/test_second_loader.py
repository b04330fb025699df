"""DDP501: a loop that reads the training loader for its numbers gets a loader of its own."""

from __future__ import annotations

from tests.rules.edited import edited

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

more = {more}
loader = DataLoader(TensorDataset(torch.rand(9, 4)), 2, shuffle=True, drop_last=True, **more)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def positive(batches):
    found = {begin}
    net.eval()
    with torch.no_grad():
        for (x,) in batches:
            {add}
    return {back}


for (x,) in loader:
    net(x).mean().backward()
    optimizer.step()
print(positive({given}))
"""
COUNT = {"begin": "0", "add": "found += (net(x) > 0).sum().item()", "back": "found"}
LIST = {"begin": "[]", "add": "found.append(net(x))", "back": "torch.cat(found).median()"}


def text_of(count: dict[str, str], more: str = '{"num_workers": 0}', given: str = "loader") -> str:
    return edited(SCRIPT.format(more=more, given=given, **count), "DDP501").text


def test_a_sum_is_that_of_all_ranks_over_each_sample_once() -> None:
    text = text_of(COUNT)
    own = "sampler=range(dist.get_rank(), len(loader.dataset), dist.get_world_size())"
    assert f"eval_loader = DataLoader(loader.dataset, 2, **more, {own})\n" in text
    assert "    [found] = all_reduce_sum(found)\n    return found" in text
    assert "print(positive(eval_loader))" in text


def test_what_is_no_sum_is_read_whole_on_every_rank() -> None:
    text = text_of(LIST)
    assert "whole_loader = DataLoader(loader.dataset, 2, drop_last=True, **more)\n" in text
    assert "print(positive(whole_loader))" in text
    assert "all_reduce" not in text


def test_a_loader_that_may_shuffle_by_its_dict_is_left() -> None:
    text = SCRIPT.format(more='{"shuffle": True}', given="loader", **LIST).replace("shuffle=True, ", "")
    assert "whole_loader" not in edited(text, "DDP501").text
