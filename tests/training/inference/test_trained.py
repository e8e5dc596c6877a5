"""The advice given for a network whose outputs are not finite."""

import numpy as np

from resnet_tpu.training.inference.trained import advice_on


def test_advice_names_weights_that_are_not_finite_else_the_precision() -> None:
    weights = {"params": {"dense": {"kernel": np.ones(2), "bias": np.ones(2)}}}
    assert advice_on(weights, "bfloat16").endswith("lower base_learning_rate, or train with precision=float32.")
    assert advice_on(weights, "float32").endswith("lower base_learning_rate.")
    weights["params"]["dense"]["bias"][1] = np.nan
    assert "not finite either (params/dense/bias)" in advice_on(weights, "float32")
