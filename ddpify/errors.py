"""What ddpify says when it cannot go on."""

from __future__ import annotations


class DdpifyError(Exception):
    """A sentence for the user: what is wrong, where, and what to do."""


class Refused(DdpifyError):
    """The script is not one that ddpify converts; the sentence says why and what does the job instead."""
