"""The server's options, and the limits that protect it from any input."""

from dataclasses import dataclass
from typing import Literal

from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import convert_fields, numbers_in, option

_MILLION = 1_000_000


@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, how to form batches, and how much to accept."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 to be reached from other machines.")
    port: int = option(8501, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65_535)
    form: Literal["auto", "onnx", "int8", "stablehlo"] = option(
        "auto",
        "Form of the bundle to run. auto: ONNX Runtime on CPU, XLA on GPU and TPU.",
    )
    max_batch_size: int = option(
        32, "Largest number of images that the network computes at once.", at_least=1, at_most=4096
    )
    max_wait_ms: float = option(
        5.0,
        "Longest time that a decoded image waits for others being decoded, in ms. An image on its own never waits.",
        at_least=0,
        at_most=_MILLION,
    )
    inference_batch_sizes: str = option(
        "",
        "Where XLA runs: batch sizes to compile at the start, such as 1,8,32. Batches are padded to the next of "
        "these. Default: powers of 2 up to max_batch_size.",
    )
    num_threads: int | None = option(
        None, "Threads of ONNX Runtime. Default: one per CPU core.", at_least=1, at_most=4096
    )
    num_parallel_calls: int | None = option(
        None, "Threads that decode images. Default: one per CPU core.", at_least=1, at_most=4096
    )
    max_body_mb: float = option(32.0, "Largest request, in MB.", at_least=0, at_most=_MILLION)
    max_pending_mb: float = option(
        512.0,
        "Largest total of all requests in progress, in MB; more are answered with 503.",
        at_least=0,
        at_most=_MILLION,
    )
    max_image_megapixels: float = option(50.0, "Largest image, in million pixels.", at_least=0, at_most=178)
    max_images_per_request: int = option(128, "Most images in one request.", at_least=1)
    max_queue: int = option(512, "Most images that may wait for one model; more are answered with 503.", at_least=1)
    max_connections: int = option(
        1000, "Most connections at a time; more are answered with 503, except for /health and /metrics.", at_least=1
    )
    request_timeout: float = option(
        30.0,
        "Time limit for a request, in seconds; after it, the answer is 408 or 504.",
        at_least=0.001,
        at_most=_MILLION,
    )
    reload_seconds: float = option(
        5.0,
        "Seconds between checks for a newer bundle in the folders given; 0: never check.",
        at_least=0,
        at_most=_MILLION,
    )
    drain_seconds: float = option(
        1.0,
        "After SIGTERM, seconds to keep answering while /health/ready returns 503, so that clients can go elsewhere.",
        at_least=0,
    )
    stop_seconds: float = option(
        30.0,
        "After that, longest wait for requests still in progress, in seconds; then they are answered with 503.",
        at_least=0,
    )
    access_log: bool = option(False, "Write a line of JSON for every request to stderr.")

    def __post_init__(self) -> None:
        convert_fields(self)
        if not self.host:  # the system would listen on all addresses
            raise UserError("host", "nothing", "an address of this machine", "Leave it out, or give 0.0.0.0 for all.")
        if self.max_images_per_request > self.max_queue:
            expected = f"at most max_queue, {self.max_queue}"
            raise UserError("max_images_per_request", self.max_images_per_request, expected, "Change one of them.")
        if self.max_body_mb > self.max_pending_mb:
            expected = f"at most max_pending_mb, {self.max_pending_mb}"
            raise UserError("max_body_mb", self.max_body_mb, expected, "Change one of them.")
        self.batch_sizes()

    @property
    def max_body(self) -> int:
        """The most bytes of one request."""
        return round(self.max_body_mb * _MILLION)

    @property
    def max_pending(self) -> int:
        """The most bytes of all requests in progress together."""
        return round(self.max_pending_mb * _MILLION)

    @property
    def max_pixels(self) -> int:
        """The most pixels of one image."""
        return round(self.max_image_megapixels * _MILLION)

    def batch_sizes(self) -> list[int]:
        """The batch sizes to compile if XLA runs the model, ascending; the last is max_batch_size. Raises UserError."""
        if not self.inference_batch_sizes:
            return [*(2**power for power in range((self.max_batch_size - 1).bit_length())), self.max_batch_size]
        sizes = sorted(numbers_in(self.inference_batch_sizes, int) or [0])
        if sizes[0] < 1 or sizes[-1] != self.max_batch_size:
            expected = f"positive whole numbers, with max_batch_size, {self.max_batch_size}, as the largest"
            raise UserError("inference_batch_sizes", self.inference_batch_sizes, expected, "Change one of them.")
        return sorted({*sizes})
