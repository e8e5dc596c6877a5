"""The loss computed by hand, and which parameters weight decay acts on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.loss import cross_entropy, decaying, l2

LOGITS = jnp.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])


def test_cross_entropy_is_minus_the_log_probability_of_the_label() -> None:
    z = np.log(np.exp(1) + np.exp(2) + np.exp(3))
    np.testing.assert_allclose(cross_entropy(LOGITS, jnp.array([2, 0])), [z - 3, np.log(3)], rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.1, 0.9])
def test_label_smoothing_spreads_the_target_over_all_classes(smoothing: float) -> None:
    z = np.log(np.exp(1) + np.exp(2) + np.exp(3))
    share = smoothing / 3
    by_hand = (1 - smoothing + share) * (z - 3) + share * (z - 2) + share * (z - 1)
    actual = cross_entropy(LOGITS, jnp.array([2, 1]), label_smoothing=smoothing)
    np.testing.assert_allclose(actual, [by_hand, np.log(3)], rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_a_target_of_zeros(label: int) -> None:
    np.testing.assert_array_equal(cross_entropy(LOGITS, jnp.array([label, label])), [0, 0])


def test_large_logits_stay_finite() -> None:
    loss = cross_entropy(jnp.array([[1e4, -1e4]]), jnp.array([1]))
    np.testing.assert_allclose(loss, [2e4])


@pytest.mark.parametrize("depth", [18, 50])
def test_decay_acts_on_all_but_batch_norm(depth: int) -> None:
    network = create_network(Config().replace(resnet_depth=depth).model, num_classes=10, image_size=224)
    decays = decaying(network.shapes()[0])
    for name, (collection, path) in tf_names(network).items():
        if collection == "params":
            node = decays
            for key in path:
                node = node[key]
            assert node == ("batch_normalization" not in name), name


def test_l2_is_half_the_squares_of_what_decays() -> None:
    params = {
        "stem": {
            "conv": {"kernel": jnp.array([[1.0, 2.0]])},
            "norm": {"scale": jnp.array(9.0), "bias": jnp.array(9.0)},
        },
        "dense": {"kernel": jnp.array([3.0]), "bias": jnp.array([4.0])},
    }
    value = l2(params)
    assert value == (1 + 4 + 9 + 16) / 2
    assert value.dtype == jnp.float32
    gradient = jax.grad(l2)(params)
    np.testing.assert_array_equal(
        gradient["dense"]["bias"], params["dense"]["bias"]
    )  # the classifier's bias is decayed too
    np.testing.assert_array_equal(gradient["stem"]["norm"]["scale"], 0)
    assert l2(params, norms=True) == value + (81 + 81) / 2
