"""The HTML page and the JUnit file: whole, self-contained, and with everything that the report says."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddpify.convert import convert_source
from ddpify.page import page
from ddpify.report import Report
from ddpify.source import Source
from ddpify.verify import Equivalence, Result, Status, Still, VerifyReport
from ddpify.verify.junit import junit
from tests.conftest import SCRIPT
from tests.shapes import junit_faults

VOID = {"meta", "col", "path", "polyline"}
RESULTS = (
    Result("wrapped", "2.1", Status.HELD, "Net inside <DDP>"),
    Result("printed_once", "4.3", Status.FAILED, "rank 1 prints too: \x1b[1mloss & more", ("DDP402",)),
    Result("noise_differs", "2.5", Status.NOTED, "the same noise"),
    Result("device_bound", "1.3", Status.NOT_TRIED, "needs a GPU"),
)
CURVES = {"rank 0": [3.0, 2.0, float("nan"), 1.0], "rank 1": [3.0, 2.5, 2.0, 1.5]}
REPORT = VerifyReport(
    Path("train.py"),
    2,
    "gloo",
    RESULTS,
    1.5,
    True,
    "rank 1: <traceback>",
    curves=CURVES,
    standins=("CIFAR10 at train.py:5",),
)


class Page(HTMLParser):
    """Tags that match, the text of the page, and what it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href") or tag == "script"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_has_all_of_the_report_and_loads_nothing() -> None:
    read = Page(page(REPORT))
    text = " ".join(read.text)
    assert not read.open
    assert not read.loads
    for result in RESULTS:
        assert result.sentence in text
        assert result.name in text
    assert "rank 1: <traceback>" in text
    assert "made-up data stood in for CIFAR10 at train.py:5" in text
    assert read.tags.count("polyline") == 2


def test_the_page_shows_both_texts_and_the_reason_of_each_edit() -> None:
    conversion = convert_source(Source(Path("train.py"), SCRIPT.encode()))
    read = Page(page(REPORT, Report(conversion, Path("train_ddp.py"))))
    text = "\n".join(read.text)
    assert not read.open
    for line in ("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "setup_distributed()"):
        assert line in text
    assert {f.code for f in conversion.plan.findings} <= set(read.text)
    assert "train_ddp.py" in text


def test_the_losses_of_both_are_on_one_plot() -> None:
    compared = (Result("same_losses", "2.4", Status.FAILED, "step 2 differs"),)
    curve = ((1, 3.0, 3.0), (2, 2.0, 2.5), (3, 1.0, 2.0))
    both = Equivalence(Path("single.py"), 2, True, Still(), compared, curve)
    report = replace(REPORT, equivalence=both)
    read = Page(page(report))
    assert read.tags.count("polyline") == 2
    assert {"single.py", "the ranks (mean)", "step 2 differs", "same_losses"} <= set(read.text)
    assert "same_losses" in junit(report)


def _browser() -> str:
    """Chromium or Chrome of this machine; the test is left out where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs a browser: install chromium, and put it on the PATH")
    return found


#: what a script that is put into the page reports of what the browser made of it
_PROBE = """
<script>
const box = (e) => e.getBoundingClientRect();
const lines = [...document.querySelectorAll("polyline")].map(box);
const cells = [...document.querySelectorAll("table.diff tr")].filter((r) => r.children.length == 4);
const why = [...document.querySelectorAll("tr.why")];
const told = {
  wide: document.documentElement.scrollWidth - window.innerWidth,
  plots: lines.map((b) => [b.width, b.height]),
  dashes: [...document.querySelectorAll("polyline")].map((e) => getComputedStyle(e).strokeDasharray),
  halves: cells.map((r) => Math.abs(box(r.children[1]).width - box(r.children[3]).width)),
  why: why.map((r) => [r.innerText, r.previousElementSibling.children.length, box(r).height]),
  failed: getComputedStyle(document.querySelector("td.failed")).color,
  held: getComputedStyle(document.querySelector("td.held")).color,
  outside: performance.getEntriesByType("resource").length,
};
document.body.innerHTML = "<pre id=told></pre>";
document.getElementById("told").innerText = JSON.stringify(told);
</script>
"""


@pytest.mark.torchrun  # takes seconds
def test_a_browser_shows_the_page_as_it_is_meant(tmp_path: Path) -> None:
    browser = _browser()
    conversion = convert_source(Source(Path("train.py"), SCRIPT.encode()))
    both = Equivalence(Path("train.py"), 2, True, Still(), (), ((1, 3.0, 3.0), (2, 2.0, 2.0), (3, 1.0, 2.0)))
    text = page(replace(REPORT, equivalence=both), Report(conversion, Path("train_ddp.py")))
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{_PROBE}</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user", "--dump-dom"]
    shown = subprocess.run(
        [browser, *options, "--window-size=1000,800", (tmp_path / "page.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    told = json.loads(unescape(shown.partition('<pre id="told">')[2].partition("</pre>")[0]))
    assert told["wide"] <= 0  # nothing has to be scrolled sideways
    assert len(told["plots"]) == 2
    assert all(width > 600 and height > 50 for width, height in told["plots"])
    assert [dash == "none" for dash in told["dashes"]] == [True, False]  # of two that are equal, both are seen
    assert max(told["halves"]) < 2  # both texts have the same room
    assert told["why"]
    assert all(text.strip() and before in (1, 4) and height > 10 for text, before, height in told["why"])
    assert told["failed"] != told["held"]
    assert told["outside"] == 0


@pytest.mark.parametrize("curves", [{}, {"rank 0": [1.0]}, {"rank 0": [float("inf")] * 3}])
def test_without_losses_there_is_no_plot(curves: dict[str, list[float]]) -> None:
    bare = VerifyReport(Path("train.py"), 2, "gloo", RESULTS, 1.5, True, curves=curves)
    assert "svg" not in Page(page(bare)).tags


def test_junit_has_a_case_for_each_property() -> None:
    text = junit(REPORT)
    assert junit_faults(text) == []
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>')
    suite = ElementTree.fromstring(text.encode())
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    failed = [case for case in suite if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["printed_once"]
    failure = failed[0].find("failure")
    assert failure is not None
    assert failure.get("message") == "rank 1 prints too: [1mloss & more"
    assert "ddpify explain DDP402" in (failure.text or "")
