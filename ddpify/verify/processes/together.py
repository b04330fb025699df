"""How runs are to be made comparable -> everything in this process that makes them so, and measures them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .clock import Clock
from .links import watch_links
from .log import Log
from .measures import Measures
from .orders import Orders
from .still import double_precision, doubled, full_precision, no_dropout, still_batch_norm
from .streams import Streams
from .weighed import Weighed

ENV = "DDPIFY_VERIFY_TOGETHER"


@dataclass(frozen=True)
class Wish:
    """What is held still, and the batches to read instead of one's own."""

    double: bool
    dropout: bool
    batch_norm: bool
    plan: Mapping[str, Any] | None
    #: what each loss is multiplied by
    scale: float = 1.0
    #: weighted means are taken over each rank's part of a batch
    apart: bool = False
    #: the plan is there to pad a rank's batches by, and not to be read
    padded: bool = False

    @classmethod
    def from_environment(cls) -> Wish | None:
        """None: the run is not compared with another."""
        text = os.environ.pop(ENV, "")
        if not text:
            return None
        given = json.loads(text)
        plan = json.loads(Path(given.pop("plan")).read_text()) if given.get("plan") else None
        return cls(**{**given, "plan": plan})


class Together:
    """The parts, in the order in which they have to be put in place."""

    def __init__(self, log: Log, wish: Wish) -> None:
        self._wish, self._streams = wish, Streams()
        deliver = doubled if wish.double else lambda batch: batch
        self._orders = Orders(log, self._streams, wish.plan, deliver, wish.padded)
        self._weighed = Weighed(log, self._streams, wish.apart)
        self._measures = Measures(log, wish.scale, lambda: self._orders.fed, lambda: self._orders.place)

    def start(self) -> None:
        """Patch torch; the script comes next."""
        torch.set_num_threads(1)  # sums are made in one order
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        if "torch._dynamo" in sys.modules:
            sys.modules["torch._dynamo"].config.disable = True
        watch_links()
        Clock().watch()
        full_precision()
        if not self._wish.dropout:
            no_dropout()
        if not self._wish.batch_norm:
            still_batch_norm()
        if self._wish.double:
            double_precision()
        self._streams.watch()
        if self._wish.plan is not None and not self._wish.padded:
            self._weighed.watch()
        self._orders.watch()
        self._measures.watch()
        self._streams.seed("start")

    def on_step(self) -> None:
        """An optimizer stepped."""
        self._orders.on_step()

    def finish(self) -> None:
        """The script is at its end."""
        self._orders.finish()
        self._measures.finish()
