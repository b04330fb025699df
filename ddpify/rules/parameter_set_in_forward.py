"""DDP211: parameters that forward computes from its own batch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.facts.codebooks import rewritten_parameters
from ddpify.facts.contents import modules
from ddpify.rules._base import Bad, Finding, Good, Rule


class ParameterSetInForward(Rule):
    """A training forward sets a parameter from its own batch.

    ## What it does
    Finds `self.sums = nn.Parameter(...)` and `self.table.weight.data.mul_(...)` in the forward of a model that is
    trained under DDP: the codebook of a VQ-VAE that follows a moving mean, class centres, a prototype table.

    ## Why is this bad?
    DDP averages gradients. What forward computes from the rank's own batch and writes into a parameter differs from
    rank to rank from the first step on, silently; a parameter that gets no gradient at all ends the second step with
    "Expected to have finished reduction in the prior iteration".

    ## Fix
    Keep it as a buffer, and add up over the ranks what it is computed from.

    ## Edit
    None: keep it in a buffer (`register_buffer`), and `all_reduce` the sums over the batch that it is computed from, so
    that every rank writes the same.
    """

    code = "DDP211"
    references = ("https://github.com/pytorch/pytorch/issues/22095",)
    good = (
        Good("""
            class Codes(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(8, 1)
                    self.register_buffer("sums", torch.zeros(8))
                def forward(self, x):
                    seen = x.detach().sum(0)
                    dist.all_reduce(seen)
                    self.sums = self.sums * 0.9 + seen * 0.1
                    return self.layer(x)
            ddp = DDP(Codes())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            class Codes(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(8, 1)
                    self.sums = nn.Parameter(torch.zeros(8))
                def forward(self, x):
                    self.sums = nn.Parameter(self.sums * 0.9 + x.detach().sum(0) * 0.1)
                    return self.layer(x)
            ddp = DDP(Codes())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Bad("""
            class Codes(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.table = nn.Embedding(8, 8)
                    self.layer = nn.Linear(8, 1)
                def update(self, x):
                    self.table.weight.data.mul_(0.9).add_(x.detach().mean(0) * 0.1)
                def forward(self, x):
                    self.update(x)
                    return self.layer(x)
            ddp = DDP(Codes())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        told: set[int] = set()
        for w in facts.after_roles.wrapped:
            for module in modules((w,)):
                for found in rewritten_parameters(facts, module):
                    if id(found.node) in told or not (facts.converting or facts.editable(found.source)):
                        continue
                    told.add(id(found.node))
                    yield self.finding(
                        found.source,
                        found.node,
                        f"`{found.name}` is a parameter that each rank sets from its own batch: the ranks' models "
                        "drift apart, or DDP waits for a gradient that never comes",
                        left="keep it in a buffer (register_buffer), and all_reduce the sums over the batch that it is "
                        "computed from",
                    )
