"""Tables and texts that are not on this machine -> small made-up ones of the same form."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .log import is_user_file
from .vision import OTHER, TRAINING, image, numbers

_COLUMNS = 8  # of a table that nobody describes
_WORDS = ["the", "a", "small", "large", "red", "blue", "cat", "dog", "house", "runs", "sees", "is"]
#: what the names of columns that are no numbers contain; all others are 0 or 1
_TEXT = re.compile(r"text|review|sentence|comment|title|content|tweet|question|headline|message|body", re.IGNORECASE)
_FILE = re.compile(r"image|img|path|file", re.IGNORECASE)
#: the columns of well-known data sets that are not `text` and `label`, by name or by name and configuration
_KNOWN = {
    "wikitext": ("text",),
    "snli": ("premise", "hypothesis", "label"),
    "squad": ("id", "title", "context", "question", "answers"),
    "cnn_dailymail": ("article", "highlights", "id"),
    "xsum": ("document", "summary", "id"),
    "cifar10": ("img", "label"),
    "cifar100": ("img", "fine_label", "coarse_label"),
    "mnist": ("image", "label"),
    "fashion_mnist": ("image", "label"),
    "beans": ("image", "labels"),
    "food101": ("image", "label"),
    "conll2003": ("id", "tokens", "ner_tags"),
    "glue": ("sentence", "label", "idx"),
    "glue mrpc": ("sentence1", "sentence2", "label", "idx"),
    "glue rte": ("sentence1", "sentence2", "label", "idx"),
    "glue stsb": ("sentence1", "sentence2", "label", "idx"),
    "glue wnli": ("sentence1", "sentence2", "label", "idx"),
    "glue qqp": ("question1", "question2", "label", "idx"),
    "glue qnli": ("question", "sentence", "label", "idx"),
    "glue mnli": ("premise", "hypothesis", "label", "idx"),
}


def rows(seed: str) -> Any:
    """Eight columns of numbers, and one of labels."""
    drawn = numbers(seed)
    made = drawn.standard_normal((TRAINING, _COLUMNS + 1))
    made[:, -1] = drawn.randint(0, 2, TRAINING)
    return made


def csv_text(seed: str) -> str:
    """The same, as a file has it."""
    between = "\t" if seed.endswith(".tsv") else ","
    head = between.join([*(f"x{i}" for i in range(_COLUMNS)), "label"])
    lines = [between.join([*(f"{x:.4f}" for x in row[:-1]), str(int(row[-1]))]) for row in rows(seed)]
    return "\n".join([head, *lines]) + "\n"


def lines(seed: str, size: int) -> list[str]:
    """Sentences of twelve words."""
    drawn = numbers(seed)
    return [" ".join(drawn.choice(_WORDS, 12)) for _ in range(size)]


def _column(name: str, size: int) -> Any:
    if _TEXT.search(name):
        return lines(name, size)
    if _FILE.search(name):
        return [f"{i}.png" for i in range(size)]
    return numbers(name).randint(0, 2, size)


def table(pandas: Any) -> Callable[[Any], Any]:
    """What makes a table in the place of the one in a file."""

    class Table(pandas.DataFrame):  # type: ignore[misc]  # pandas is not at hand for mypy
        """A table that has every column that it is asked for."""

        @property
        def _constructor(self) -> Any:
            return pandas.DataFrame

        def _have(self, names: Sequence[Any]) -> None:
            for name in names:
                if isinstance(name, str) and name not in self.columns:
                    self[name] = _column(name, len(self))

        def __getitem__(self, key: Any) -> Any:
            self._have([key] if isinstance(key, str) else key if isinstance(key, list) else [])
            return super().__getitem__(key)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                # others ask too: is it sparse, has it a schema?
                if name.startswith("_") or not is_user_file(sys._getframe(1).f_code.co_filename):
                    raise
                return self[name]

        def drop(self, labels: Any = None, **kwargs: Any) -> Any:
            named = kwargs.get("columns", labels if kwargs.get("axis") in (1, "columns") else None)
            self._have([named] if isinstance(named, str) else list(named or ()))
            return super().drop(labels, **kwargs)

    return lambda path: Table(rows(str(path)), columns=[*(f"x{i}" for i in range(_COLUMNS)), "label"])


def texts(module: Any, path: str, config: object, split: Any) -> Any:
    """What `load_dataset` would give: one part, several, or all of them by name."""
    name = path.rpartition("/")[2].lower()
    columns = _KNOWN.get(f"{name} {config}", _KNOWN.get(name, ("text", "label")))

    def part(wanted: str) -> Any:
        size = TRAINING if wanted.startswith("train") else OTHER
        return module.Dataset.from_dict({column: _of_hub(column, size) for column in columns})

    if isinstance(split, (list, tuple)):
        return [part(str(one)) for one in split]
    if split is not None:
        return part(str(split))
    return module.DatasetDict({one: part(one) for one in ("train", "validation", "test")})


def _of_hub(column: str, size: int) -> list[Any]:
    if column in ("image", "img"):
        return [image(f"{column}{size} {i}") for i in range(size)]
    if column in ("label", "labels", "fine_label", "coarse_label"):
        return [i % 2 for i in range(size)]
    if column in ("idx", "id"):
        return list(range(size)) if column == "idx" else [str(i) for i in range(size)]
    if column == "answers":
        return [{"text": ["cat"], "answer_start": [0]}] * size
    if column == "tokens":
        return [line.split() for line in lines(column, size)]
    if column == "ner_tags":
        return [[0, 1] * 6] * size
    return lines(column, size)
