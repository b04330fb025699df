"""A VerifyReport -> JUnit XML, as CI systems read it: one test case for each property."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ddpify.xml_text import clean

from .checks import Status

if TYPE_CHECKING:
    from .report import VerifyReport


def junit(report: VerifyReport) -> str:
    """The report as a document of one test suite."""
    results = (*report.results, *report.compared)
    by_status = {status: sum(result.status is status for result in results) for status in Status}
    suite = ElementTree.Element(
        "testsuite",
        name=clean(f"ddpify verify {report.script}"),
        tests=str(len(results)),
        failures=str(by_status[Status.FAILED]),
        errors="0",
        skipped=str(by_status[Status.NOT_TRIED]),
        time=f"{report.seconds:.1f}",
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="ddpify.verify", name=result.name, time="0")
        sentence = clean(result.sentence)
        if result.status is Status.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=sentence, type=f"contract {result.section}")
            hints = [f"ddpify explain {code}" for code in result.likely]
            failure.text = "\n".join([sentence, *hints, clean(report.failure)])
        elif result.status is Status.NOT_TRIED:
            ElementTree.SubElement(case, "skipped", message=sentence)
        else:
            ElementTree.SubElement(case, "system-out").text = sentence
    ElementTree.indent(suite)
    # tostring() would declare the encoding of the locale
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'
