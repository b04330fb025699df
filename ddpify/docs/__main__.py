"""The README in, the README with its generated parts made anew out: `python -m ddpify.docs [README.md]`."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpify.convert import convert_source
from ddpify.docs import rule_table
from ddpify.errors import DdpifyError
from ddpify.source import Source

EXAMPLE = Path("fixtures/convert/argparse_functions/before.py")


def generated(text: str, root: Path) -> str:
    """A README with what stands between its markers made from the rules and from a conversion."""
    text = put(text, "rules", rule_table())
    return put(text, "example", example(root / EXAMPLE))


def put(text: str, name: str, part: str) -> str:
    """What stands between `<!-- name:start -->` and `<!-- name:end -->`, replaced."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise DdpifyError(f"the text has no block {start} ... {end}")
    return re.sub(f"{start}.*{end}", lambda _: f"{start}\n{part}\n{end}", text, flags=re.DOTALL)


def example(script: Path) -> str:
    """The diff of a conversion, without the lines around the changes and the bodies of the helpers."""
    conversion = convert_source(Source(Path("train.py"), script.read_bytes()))
    before, after = conversion.source.text.splitlines(), conversion.text.splitlines()
    diff = difflib.unified_diff(before, after, "train.py", "train_ddp.py", lineterm="", n=0)
    return "\n".join(["```diff", *folded(diff), "```"])


def folded(diff: Iterable[str]) -> Iterator[str]:
    """`+def setup_distributed(): ...`, the body left out; blank lines that are added are left out too."""
    inside = False
    for line in diff:
        if line.startswith("+def "):
            inside = True
            yield f"{line} ..."
        elif line == "+" or line.startswith("+@") or (inside and line.startswith("+ ")):
            continue
        else:
            inside = False
            yield line


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    path.write_text(generated(path.read_text(encoding="utf-8"), path.resolve().parent), encoding="utf-8")


if __name__ == "__main__":
    main()
