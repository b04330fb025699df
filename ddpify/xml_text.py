"""Any text in, text that XML can hold out."""

from __future__ import annotations

import re

# what XML cannot hold: the colours of a terminal, a form feed in a source line, bytes of a name that are no text
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """The text without what no XML document may hold, not even as a reference."""
    return _CONTROL.sub("", text)
