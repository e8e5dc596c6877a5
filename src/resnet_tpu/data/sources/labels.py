"""Classes of a data set: their names and number, and what the labels in its records mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resnet_tpu.data.sources.fingerprint import fingerprint
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

UNKNOWN_LABEL = -1
DEFAULT_CLASSES = 1000
CLASSES_WITH_BACKGROUND = 1001
"""The number of classes of ImageNet with class 0 = background; labels are then used as they are stored."""


@dataclass(frozen=True)
class Labels:
    """The classes of a split."""

    names: list[str] | None  # by label; None if the data do not say
    num_classes: int  # as asked for, else as many as there are, else 1000
    first: int  # what is subtracted from stored labels: they count from 1, or from 0 = background
    allow_unknown: bool  # whether an example may lack a label
    by_filename: bool = False  # random labels hashed from file names, an option of the original's pruning fork

    def of(self, stored: int, filename: str, where: Callable[[], str]) -> int:
        """The label, from 0, of an example with label `stored`. Raises UserError, naming `where`, if it is wrong."""
        if self.by_filename:
            return fingerprint(filename.encode("utf-8", "surrogateescape")) % self.num_classes
        if stored == UNKNOWN_LABEL and self.allow_unknown:
            return UNKNOWN_LABEL
        label = stored - self.first
        if not 0 <= label < self.num_classes:
            accepted = f"{self.first} ... {self.num_classes - 1 + self.first}"
            do = "Set num_label_classes to the number of classes in the data (1001: labels count from 0)."
            if stored == 0:
                do = "Write labels that count from 1."
            elif stored == UNKNOWN_LABEL:
                do = "Write the class of each image into its feature image/class/label."
            raise UserError(f"Label {where()}", stored, accepted, do)
        return label


def make_labels(
    data: DataConfig, names: Sequence[str] | None, *, counted: int | None = None, allow_unknown: bool = False
) -> Labels:
    """The classes of a data set. names: in the order of their labels from 1; None if the data do not tell.

    counted: how many classes there are, if that is known without names.
    Raises UserError when fewer classes are asked for than there are names.
    """
    requested = data.num_label_classes
    # 1001 names mean no background: a run that counted them has this number in its options too
    has_background = requested == CLASSES_WITH_BACKGROUND and len(names or ()) != CLASSES_WITH_BACKGROUND
    class_names = None if names is None else ["background", *names] if has_background else list(names)
    if class_names and requested and requested < len(class_names):
        expected = f"at least the {len(class_names)} classes of {data.location}"
        do = "Leave it out, or give data with no more classes. A run keeps its own: start another with --init_from=RUN."
        raise UserError("num_label_classes", requested, expected, do)
    number = requested or len(class_names or ()) or counted or DEFAULT_CLASSES
    return Labels(class_names, number, 0 if has_background else 1, allow_unknown, data.lth_use_random_label)
