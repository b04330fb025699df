"""The child processes of verify: guard -> torchrun -> one observed rank each. They import nothing else of ddpify."""

from __future__ import annotations
