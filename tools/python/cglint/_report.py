"""What a check found, as values. The JSON report that they are made from is described in docs/schema/report.schema.json."""
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple


class CglintError(Exception):
    """The check could not be made: wrong use, unreadable input, or a failure of the program."""


@dataclass(frozen=True)
class Source:
    """A line that a finding points at."""

    file: str
    line: int = 0             # 0: unknown
    function: str = ""
    role: str = ""            # "join", "side branch", ...
    generated: bool = False   # written by a compiler, not by somebody

    def __str__(self) -> str:
        return self.file + (":{}".format(self.line) if self.line else "") + (" ({})".format(self.function) if self.function else "")


@dataclass(frozen=True)
class Finding:
    code: str                 # "CG102"
    slug: str                 # "join-follows-side-branch"
    severity: str             # "info", "warning", "error"
    confidence: str           # "possible", "likely", "certain"
    message: str
    file: str                 # the recording
    graph: str
    fix: str
    sources: Tuple[Source, ...]
    occurrences: int          # in how many layers or places
    evidence: Dict[str, Any]  # typed values, by name; names differ by rule
    fingerprint: str          # stays the same from run to run
    suppressed: bool
    causes: Tuple[str, ...]   # fingerprints of findings that explain this one
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)  # everything, as in the JSON report

    def __str__(self) -> str:
        place = str(self.sources[0]) if self.sources else self.file
        return "{}: {} {}".format(place, self.code, self.message)


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not look: never the same as clean."""

    code: str
    slug: str
    file: str
    graph: str                # the first one it holds for
    graph_count: int
    missing: Tuple[str, ...]  # facts
    reason: str
    requested: bool           # it was asked for, by code or by a limit

    def __str__(self) -> str:
        return "{}: {} not checked: {}".format(self.file, self.code, self.reason)


@dataclass(frozen=True)
class Loss:
    """Part of an input that was lost or left out."""

    file: str
    severity: str             # "info", "data_loss", "error"
    what: str
    count: int


class Report(List[Finding]):
    """The findings, those that were suppressed left out; and what could not be checked.

    An empty report is clean only if `is_clean` says so.
    """

    def __init__(self, document: Dict[str, Any]):
        self.document = document                  # the JSON report
        self.exit_code: int = document["exit_code"]  # as of `cglint lint`: 0 clean, 1 findings, 4 could not be checked
        every = [_finding(item) for item in document["findings"]]
        super().__init__(finding for finding in every if not finding.suppressed)
        self.suppressed = [finding for finding in every if finding.suppressed]
        self.not_checked = [
            NotChecked(item["code"], item["slug"], item["file"], item["graph"], item["graph_count"], tuple(item["missing"]), item["reason"], item["requested"])
            for item in document["not_checked"]]
        self.losses = [Loss(part["file"], item["severity"], item["what"], item["count"]) for part in document["inputs"] for item in part["losses"]]
        self.rules_checked: Tuple[str, ...] = tuple(document["rules_checked"])

    @property
    def is_clean(self) -> bool:
        """Nothing at or above the severity that fails, nothing that was asked for left unchecked, no input lost."""
        return self.exit_code == 0

    def text(self) -> str:
        """Findings with their fixes, then what could not be checked."""
        lines = []
        for finding in self:
            lines.append(str(finding))
            if finding.fix:
                lines.append("    fix: " + finding.fix)
        lines += [str(item) for item in self.not_checked if item.requested]
        lines += ["{}: {}".format(loss.file, loss.what) for loss in self.losses if loss.severity != "info"]
        for part in self.document["inputs"]:
            if part["nothing_to_check"]:
                lines.append("{}: nothing to check{}".format(part["file"], ": " + part["reason"] if part.get("reason") else ""))
        return "\n".join(lines)


def _finding(item: Dict[str, Any]) -> Finding:
    sources = tuple(Source(s["file"], s.get("line", 0), s.get("function", ""), s.get("role", ""), s.get("generated", False)) for s in item["sources"])
    return Finding(item["code"], item["slug"], item["severity"], item["confidence"], item["message"], item["file"], item["graph"], item["fix"]["text"],
                   sources, item["occurrence_count"], item["evidence"], item["fingerprint"], item["suppressed"], tuple(item["causes"]), item)


def first_error(document: Dict[str, Any]) -> Optional[str]:
    for error in document["errors"]:
        place = error["file"] + (" at byte {}".format(error["offset_bytes"]) if "offset_bytes" in error else "")
        return (place + ": " if place else "") + error["message"]
    return None
