"""Which Google Cloud project is used."""

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.storage.gcp import project_of


def test_the_project_is_the_given_one_else_that_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.auth.default", lambda: (None, "theirs"))
    assert (project_of("mine"), project_of("")) == ("mine", "theirs")
    monkeypatch.setattr("google.auth.default", lambda: (None, None))
    with pytest.raises(UserError, match=r"^Google Cloud project: got none, .* Give --gcp_project=PROJECT"):
        project_of("")
