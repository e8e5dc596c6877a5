"""What `prepare` notices about its input: every oddity is counted and listed with its path and the action taken."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A kind of finding: (what was found, what was done). The bad ones count against `max_bad_fraction`."""

    UNREADABLE = "unreadable image", "skipped"
    EMPTY_FILE = "zero-byte file", "skipped"
    TRUNCATED = "truncated image", "skipped"
    UNSUPPORTED = "image of an unsupported kind", "skipped"
    DAMAGED = "JPEG with errors that still decodes", "kept"
    MISNAMED = "image named as another format", "stored as JPEG"
    CMYK = "CMYK image", "converted to RGB"
    TURNED = "EXIF rotation", "turned upright"
    ANIMATED = "several frames", "first one used"
    CONVERTED = "other format than JPEG", "converted to JPEG"
    SCALED = "larger than asked for", "made smaller"
    RECOMPRESSED = "JPEG of more bytes than needed", "compressed again"
    DUPLICATE = "same image in two splits", "kept"
    AMBIGUOUS = "same image in two classes", "kept"
    LISTED_TWICE = "listed twice", "used once"
    TOO_SMALL = "class too small for every split", "kept"
    NO_IMAGES = "class without images", "left out"
    MISSING_IN_SPLIT = "class missing in a split", "kept"
    NESTED = "folder inside a class folder", "ignored"
    STRAY = "image outside the class folders", "ignored"
    HIDDEN = "hidden image or folder of images", "ignored"
    OTHER_FILE = "not an image file, by its name", "ignored"

    def __init__(self, what: str, action: str) -> None:
        """what: the name shown to the user. action: what `prepare` did."""
        self.what, self.action = what, action

    @property
    def is_bad(self) -> bool:
        """Whether it counts against `max_bad_fraction`."""
        return self.action == "skipped"

    @property
    def is_listed(self) -> bool:
        """Whether paths are listed; not for kinds that the user asked for, as they may apply to every photo."""
        return self not in (Kind.CONVERTED, Kind.SCALED, Kind.RECOMPRESSED)


@dataclass(frozen=True)
class Finding:
    """One finding about one path."""

    kind: Kind
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.detail})" if self.detail else self.path


@dataclass(frozen=True)
class FindingGroup:
    """All findings of one kind."""

    what: str
    action: str
    count: int
    first: list[str]  # the first paths, with details


def group_findings(findings: Iterable[Finding], counts: Mapping[Kind, int], first: int | None) -> list[FindingGroup]:
    """The findings grouped by kind, in the order of `Kind`; paths stay in the order given.

    counts: number of findings of the kinds that list no paths. first: how many paths of each kind to keep; None: all.
    """
    groups: dict[Kind, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.kind, []).append(finding)
    return [
        FindingGroup(
            kind.what, kind.action, len(found) + counts.get(kind, 0), [str(finding) for finding in found[:first]]
        )
        for kind in Kind
        if (found := groups.get(kind, [])) or kind in counts
    ]
