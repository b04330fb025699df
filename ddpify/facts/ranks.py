"""placeholder until the ranks facts are written"""
from __future__ import annotations
from typing import Any
def guarded(event: Any, flow: Any) -> bool:
    return False
