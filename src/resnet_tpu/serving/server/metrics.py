"""The server's metrics, in the Prometheus format."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server: its own, named `resnet_tpu_...`, and those of the process."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "resnet_tpu_requests", "Requests by route and status code.", ["route", "code"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "resnet_tpu_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.connections = Gauge("resnet_tpu_connections", "Open connections.", registry=self.registry)
        self.reloads = Counter(
            "resnet_tpu_reloads", "Newer bundles found, by outcome.", ["model", "result"],
            registry=self.registry,
        )  # fmt: skip
        self._version = Gauge("resnet_tpu_model_version", "Version served.", ["model"], registry=self.registry)
        self._queue = Gauge("resnet_tpu_queue_images", "Images that wait.", ["model"], registry=self.registry)
        self._stage_seconds = Histogram(
            "resnet_tpu_stage_seconds",
            "Time of an image in decode (with the wait for a thread) and queue, and of a batch in run.",
            ["model", "stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_images = Histogram(
            "resnet_tpu_batch_images", "Images that ran together.", ["model"], buckets=_IMAGES, registry=self.registry
        )

    def count_refusal(self, status: int) -> None:
        """Counts a connection, or the head of a request, that is refused before it is routed."""
        self.requests.labels("none", str(status)).inc()

    def of_model(self, model: str) -> "ModelMetrics":
        """The counters of one model."""
        return ModelMetrics(self._stage_seconds, self._batch_images, model)

    def watch(self, model: str, *, version: Callable[[], float], queue: Callable[[], float]) -> None:
        """Sets the functions that return a model's version and queue length, called whenever the metrics are read.

        Its reloads begin at 0: Prometheus sees no increase in a counter that first appears at 1.
        """
        self._version.labels(model).set_function(version)
        self._queue.labels(model).set_function(queue)
        for result in ("loaded", "refused"):
            self.reloads.labels(model, result)

    def text(self) -> bytes:
        """All metrics, in the Prometheus text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The metrics of one model's images, looked up only once."""

    def __init__(self, stage_seconds: Histogram, batch_images: Histogram, model: str) -> None:
        self.decode = stage_seconds.labels(model, "decode")
        self.queue = stage_seconds.labels(model, "queue")
        self.run = stage_seconds.labels(model, "run")
        self.batch_images = batch_images.labels(model)
