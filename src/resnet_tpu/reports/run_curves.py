"""The picture of a run's curves, drawn at the end of the run."""

import logging

from resnet_tpu import storage
from resnet_tpu.errors import first_line
from resnet_tpu.reports.metrics import read_metrics

log = logging.getLogger(__name__)


def draw_curves(model_dir: str) -> None:
    """Draws the curves of a run, if there are measurements: a run that began at its last step has none.

    If Matplotlib finds no folder for its cache, as in a read-only container, only logs that, because the run is done.
    """
    try:
        from resnet_tpu.reports import curves, style  # matplotlib takes a while to load
    except OSError as error:
        log.warning("%s is not drawn: %s.", curves_path(model_dir), first_line(error))
        return

    if rows := read_metrics(model_dir):
        style.write_png(curves.draw_training(rows), curves_path(model_dir))


def curves_path(model_dir: str) -> str:
    """The path of the picture, which is the last file that training writes."""
    return storage.join(model_dir, "report", "curves.png")
