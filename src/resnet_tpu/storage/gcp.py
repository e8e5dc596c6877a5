"""Turns refusals by Google's libraries and services into errors that say what to do."""

import contextlib
from collections.abc import Iterator

from resnet_tpu.errors import UserError, missing_extra

_LOGIN = (
    "Log in with `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to the key file of a "
    "service account, or run on a machine of Google Cloud."
)


@contextlib.contextmanager
def explained(what: str, *, role: str, do: str = "Check the names and the project.") -> Iterator[None]:
    """Turns errors of Google's libraries in the block into UserErrors about `what`, with the service's message.

    role: what the account needs, named when permission is denied; do: the advice for everything else.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as error:
        raise UserError(what, _words(error), "credentials for Google Cloud", _LOGIN) from error
    except GoogleAPIError as error:
        raise refusal(what, error, role=role, do=do) from error


def refusal(what: str, error: Exception, *, role: str, do: str) -> UserError:
    """The UserError for a service's error response, an exception of google.api_core."""
    from google.api_core import exceptions as api

    if isinstance(error, api.Unauthorized):  # over gRPC or HTTP, as below
        return UserError(what, _words(error), "credentials that the service accepts", _LOGIN)
    if isinstance(error, api.Forbidden):
        give = f"Give the account the role {role}, or use another account."
        return UserError(what, _words(error), f"the role {role}", give)
    if isinstance(error, api.TooManyRequests):
        return UserError(what, _words(error), "less than the quota", "Wait, ask for less, or request a higher quota.")
    if isinstance(error, api.ServerError | api.RetryError):
        later = "Check the connection, and try again later: finished work is kept."
        return UserError(what, _words(error), "an answer from the service", later)
    return UserError(what, _words(error), "a request that the service accepts", do)


def _words(error: BaseException) -> str:
    """The message of the error, on one line and without its full stop; after a timeout also its cause."""
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__
    for deeper in getattr(cause, "exceptions", ())[-1:]:
        text += f" ({deeper})"
    return " ".join(text.split())[:500].removesuffix(".")


def project_of(given: str) -> str:
    """The project given, or else that of the credentials on this machine.

    Raises UserError when there are no credentials, or they name no project.
    """
    if given:
        return given
    try:
        import google.auth
    except ImportError:
        raise missing_extra("Google Cloud", "google-auth", "gcp") from None
    with explained("Google Cloud project", role=""):
        _, found = google.auth.default()
    if not found:
        do = "Give --gcp_project=PROJECT, or set GOOGLE_CLOUD_PROJECT."
        raise UserError("Google Cloud project", "none", "one given or named by the credentials", do)
    return str(found)
