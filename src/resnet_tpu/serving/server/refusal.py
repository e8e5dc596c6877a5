"""Requests that are not answered with predictions, and the HTTP status that says why."""

CLIENT_GONE = 499
"""The status in log and metrics of a request whose client went away; it is never sent. TensorFlow Serving's too."""

_RETRY_SECONDS = "1"


class Refusal(Exception):  # noqa: N818 (the server is well; the request is at fault)
    """Ends a request with this status and `{"error": message}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: when to come back, where that helps."""
        return {"retry-after": _RETRY_SECONDS} if self.status == 503 else {}
