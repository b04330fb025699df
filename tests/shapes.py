"""What readers of JUnit XML and of SARIF insist on, written down from their schemas for what ddpify writes."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

#: element -> (attributes that it has to have, those that it may have, elements that may stand in it), as in the schema
#: of Jenkins' xUnit plug-in; `file` and `line` are pytest's, and GitLab reads them
JUNIT: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors", "disabled"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests"},
        {"failures", "errors", "skipped", "disabled", "time", "timestamp", "hostname", "id", "package"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"classname", "assertions", "time", "status", "file", "line"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "skipped": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "failure": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
_NUMBERS = ("tests", "failures", "errors", "skipped", "line")


def junit_faults(text: str) -> list[str]:
    """What is wrong in a document; one that is no XML raises."""
    root = ElementTree.fromstring(text.encode())
    found = [] if root.tag in ("testsuite", "testsuites") else [f"a document of {root.tag}"]
    for node in root.iter():
        needed, more, inside = JUNIT.get(node.tag, (set(), set(), set()))
        if node.tag not in JUNIT:
            found.append(f"no element {node.tag}")
        found += [f"{node.tag} without {name}" for name in sorted(needed - set(node.attrib))]
        found += [f"{node.tag} with {name}" for name in sorted(set(node.attrib) - needed - more)]
        found += [f"{child.tag} in {node.tag}" for child in node if child.tag not in inside]
        found += [f"{name}={node.get(name)}" for name in _NUMBERS if not (node.get(name) or "0").isdigit()]
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        counted = {"tests": len(cases)} | {
            f"{kind}s".replace("skippeds", "skipped"): sum(c.find(kind) is not None for c in cases)
            for kind in ("failure", "error", "skipped")
        }
        found += [f"{key}={suite.get(key)}, not {n}" for key, n in counted.items() if suite.get(key) != str(n)]
    return found


def _object(needed: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": needed.split(),
        "properties": properties,
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 1}
_MESSAGE = _object("text", text=_TEXT, markdown=_TEXT)
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_REGION = _object(
    "startLine",
    startLine=_NUMBER,
    startColumn=_NUMBER,
    endLine=_NUMBER,
    endColumn=_NUMBER,
    snippet=_object("text", text=_TEXT),
)
_URI = {"type": "string", "pattern": r"^[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+$"}
_LOCATIONS = {
    "type": "array",
    "items": _object(
        "physicalLocation",
        physicalLocation=_object("artifactLocation", artifactLocation=_object("uri", uri=_URI), region=_REGION),
    ),
}
_RULE = _object(
    "id",
    id=_TEXT,
    name=_TEXT,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    helpUri={**_URI, "format": "uri"},
    defaultConfiguration=_object("", level=_LEVEL),
)
_RESULT = _object(
    "message",
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=_LEVEL,
    message=_MESSAGE,
    locations=_LOCATIONS,
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
)
_INVOCATION = _object(
    "executionSuccessful",
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications={
        "type": "array",
        "items": _object("message", level=_LEVEL, message=_MESSAGE, locations=_LOCATIONS),
    },
)
_RUN = _object(
    "tool",
    tool=_object("driver", driver=_object("name", name=_TEXT, version=_TEXT, rules={"type": "array", "items": _RULE})),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations={"type": "array", "items": _INVOCATION},
    results={"type": "array", "items": _RESULT},
)
#: the part of SARIF 2.1.0 that lint writes; the standard allows no other keys either
SARIF = _object(
    "version runs",
    **{"$schema": _TEXT},
    version={"const": "2.1.0"},
    runs={"type": "array", "items": _RUN, "minItems": 1},
)
