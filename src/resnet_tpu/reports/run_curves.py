"""The picture of a run's curves, which is drawn at its end."""

from resnet_tpu import storage
from resnet_tpu.reports.metrics import read_metrics


def draw_curves(model_dir: str) -> None:
    """Draws the curves of a run, if it has measured anything: a run that began at its last step has not."""
    from resnet_tpu.reports import curves, style  # matplotlib takes a while to load

    if rows := read_metrics(model_dir):
        storage.make_dir(storage.join(model_dir, "report"))
        style.write_png(curves.draw_training(rows), curves_path(model_dir))


def curves_path(model_dir: str) -> str:
    """Where the picture is. It is the last thing that a training writes."""
    return storage.join(model_dir, "report", "curves.png")
