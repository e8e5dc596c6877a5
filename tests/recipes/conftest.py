"""What the tests of recipes share: trainings without a picture."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick(blank_curves: None) -> None:
    """Draws nothing after these trainings: nothing here looks at it."""
