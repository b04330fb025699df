"""DDP307: what is numbered, listed, drawn or joined by a set is the same on all ranks: its order is each process's."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

WORDS = "words = set()\nfor line in open('train.txt'):\n    words.update(line.split())\n"
VOCABULARY = """
class Vocabulary:
    def __init__(self):
        self.words = set()
        self.index = {}
        self.size = 2

    def build(self, lines):
        for line in lines:
            self.words.update(line.split())
        for word in self.words:
            self.index[word] = self.size
            self.size += 1
"""


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (
            "index = {'<pad>': 0}\nfor word in words:\n    index[word] = len(index)",
            "for word in sorted(words):\n    index[word]",
        ),
        ("names = []\nfor word in words:\n    names.append(word.upper())", "for word in sorted(words):"),
        ("for word in words:\n    table[word] = np.random.rand(50)", "for word in sorted(words):"),
        ("for word in words | {'<unk>'}:\n    index[word] = len(index)", "for word in sorted(words | {'<unk>'}):"),
        (
            "every = words.union(open('more.txt'))\nfor word in every:\n    index[word] = len(index)",
            "for word in sorted(every):",
        ),
        ("kinds = sorted(list(words), key=len)", "kinds = sorted(sorted(words), key=len)"),
        ("kinds = sorted(words, key=lambda w: w[-1])", "kinds = sorted(sorted(words), key=lambda w: w[-1])"),
        ("names = [w.upper() for w in words]", "names = [w.upper() for w in sorted(words)]"),
        ("text = ' '.join(words)", "text = ' '.join(sorted(words))"),
        ("rows = dict.fromkeys(words, 0)", "rows = dict.fromkeys(sorted(words), 0)"),
    ],
)
def test_what_goes_by_a_set_goes_by_it_sorted(line: str, written: str) -> None:
    assert (
        written
        in edited(
            script(imports="import numpy as np", before=f"{WORDS}index, table = {{}}, {{}}\n{line}"), "DDP307"
        ).text
    )


def test_a_set_in_an_object_is_numbered_alike() -> None:
    text = script(functions=VOCABULARY, before="vocabulary = Vocabulary()\nvocabulary.build(open('train.txt'))")
    assert "        for word in sorted(self.words):\n" in edited(text, "DDP307").text


@pytest.mark.parametrize(
    "line",
    [
        "for word in words:\n    print(word)",
        "seen = {}\nfor word in words:\n    seen[word] = 0",
        "rows = {}\nfor word in words:\n    rows.setdefault(word[0], set()).add(word)",
        "count = len([w for w in words if w])",
        "names = sorted([w.upper() for w in words])",
        "names = sorted(words)\nindex = {}\nfor name in names:\n    index[name] = len(index)",
        "names = sorted(words, key=str)",
        "names = ['a', 'b']\nindex = {}\nfor name in names:\n    index[name] = len(index)",
    ],
)
def test_where_no_order_is_taken_from_a_set_nothing_is_sorted(line: str) -> None:
    text = script(before=WORDS + line)
    assert edited(text, "DDP307").text == text
