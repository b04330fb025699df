"""DDP001: comments that ignore nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ddpify.facts import Facts
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity


class UnusedIgnore(Rule):
    """A `# ddpify: ignore` comment that nothing is reported under.

    ## What it does
    Finds `# ddpify: ignore`, `# ddpify: ignore[DDP401]` and `# ddpify: ignore-file[DDP402]` that name a rule which
    reports nothing there.

    ## Why is this bad?
    The comment hides the next fault of its line, and tells the reader of one that is not there.

    ## Fix
    Take the comment away, or the code out of its brackets.
    """

    code = "DDP001"
    severity = Severity.WARNING
    good = (Good('torch.save(model.state_dict(), "model.pt")  # ddpify: ignore[DDP401]'),)
    bad = (
        Bad('name = "model.pt"  # ddpify: ignore[DDP401]'),
        Bad("# ddpify: ignore-file[missing-set-epoch]\nddp = DDP(model)"),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Nothing: comments are compared with what all rules have found, by `linting/ignores.py`."""
        return iter(())
