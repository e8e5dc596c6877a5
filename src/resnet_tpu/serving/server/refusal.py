"""The error for requests that are refused, with an HTTP status that says why."""

CLIENT_GONE = 499
"""Status in the log and metrics if the client disconnected; it is never sent. TensorFlow Serving uses it too."""

_RETRY_SECONDS = "1"


class Refusal(Exception):  # noqa: N818 (the server is well; the request is at fault)
    """A request is answered with this status and `{"error": message}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: when to try again, if that may help."""
        return {"retry-after": _RETRY_SECONDS} if self.status == 503 else {}
