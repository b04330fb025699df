"""DDP203 in code that the flow never reached."""

from __future__ import annotations

from tests.rules.edited import edited, script

OPTIONS = """
class Options:
    path = None

def fit():
    net = nn.Linear(4, 1)
    if Options.path:
        net.load_state_dict(torch.load(Options.path))
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in loader:
        net(x.to(device)).mean().backward()
        optimizer.step()
    if Options.path:
        torch.save(net.state_dict(), Options.path)
"""


def test_what_an_option_hides_above_the_wrap_has_the_bare_model() -> None:
    text = edited(script(functions=OPTIONS, after="fit()"), "DDP201", "DDP203").text
    assert "    net.load_state_dict(torch.load(Options.path))" in text
    assert "    torch.save(net.module.state_dict(), Options.path)" in text
