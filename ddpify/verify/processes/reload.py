"""Files that the script saved -> read again and loaded, as the original script on one GPU would."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .log import Log

MOST = 3  # files
_BYTES = 256 << 20
# classes of the script cannot be found again: the file may be well
_UNKNOWN = (AttributeError, ImportError)


def _read(load: Any, path: Path) -> Any:
    try:
        return load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # a class that is not on torch's list; anything else is a file that cannot be read
        if "weights_only" not in str(error).lower():
            raise
    return load(path, map_location="cpu", weights_only=False)


def _states(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Every dictionary of tensors in what was saved."""
    if isinstance(value, Mapping) and depth < 4:
        if value and all(isinstance(key, str) for key in value) and any(map(torch.is_tensor, value.values())):
            yield value
        for held in value.values():
            yield from _states(held, depth + 1)


def _bare(key: str) -> str:
    return key.removeprefix("module.")


def _mismatch(state: Mapping[str, Any], model: Any) -> tuple[bool, str]:
    """Whether this is the model's state, and why it does not load."""
    own = set(model.state_dict())
    same = [key for key in state if _bare(key) in own]
    if len(same) * 2 <= len(own) or not all(map(torch.is_tensor, (state[key] for key in same))):
        return False, ""
    try:
        model = copy.deepcopy(model)
    except Exception:  # what cannot be copied
        return False, ""
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except Exception:  # sizes that differ: another model with layers of the same names
        return False, ""
    # other keys are the script's own way to save, and so is an average of a model (AveragedModel)
    wrong = [key for key in unexpected if _bare(key) in own and "n_averaged" not in state]
    if wrong:
        return True, f"unexpected key {wrong[0]}" + (f", missing key {missing[0]}" if missing else "")
    return True, ""


def into_models(value: Any, models: Sequence[Any]) -> tuple[str | None, str]:
    """The bare model whose state is in what is saved, and why the state does not load into it."""
    found: tuple[str | None, str] = (None, "")
    for state in _states(value):
        tried = [(type(m).__name__, why) for m in models for ours, why in [_mismatch(state, m)] if ours]
        if tried:
            found = min(tried, key=lambda one: one[1])  # the one that it loads into, where there is one
            if found[1]:
                return found
    return found


def tell(log: Log, load: Any, folder: str, saved: Iterable[str]) -> None:
    """Read what this rank saved last, below the folder that the script was started in."""
    for name in list(dict.fromkeys(saved))[-MOST:]:
        path = Path(folder, name)
        if not path.is_file() or path.stat().st_size > _BYTES:
            continue
        why = ""
        try:
            _read(load, path)
        except _UNKNOWN:
            continue
        except Exception as error:
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        log.note("reload", path=name, error=why)
