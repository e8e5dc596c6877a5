"""Whole networks with the options that change them: sizes, types, randomness, export."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

RS: dict[str, Any] = {
    "use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": True, "se_ratio": 0.25
}  # fmt: skip
RANDOM: dict[str, Any] = {
    "dropblock_groups": "3,4", "dropblock_keep_prob": 0.5, "dropblock_size": 2, "drop_connect_rate": 0.5,
    "dropout_rate": 0.5,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "rs": {"resnet_depth": 50, **RS, **RANDOM},
    "v2": {"resnet_depth": 50, "pre_activation": True, "dropblock_groups": "4", "dropblock_keep_prob": 0.9},
    "evonorm_b0": {"resnet_depth": 8, "pre_activation": True, "norm_act_layer": "evonorm_b0"},
    "evonorm_s0": {"resnet_depth": 8, "pre_activation": True, "norm_act_layer": "evonorm_s0", "dropout_rate": 0.5},
}


def make_network(image_size: int = 64, num_classes: int = 10, *, groups: int = 1, **options: Any) -> Network:
    options = {"resnet_width": 8, "precision": "float32", "stem": "imagenet"} | options
    model = Config().replace(**options).model
    return create_network(model, num_classes=num_classes, image_size=image_size, batch_norm_groups=groups)


def images(n: int = 4, size: int = 32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(n, size, size, 3)), jnp.float32)


def paths(arrays: Arrays) -> set[str]:
    return {"/".join(str(key.key) for key in path) for path, _ in jax.tree.leaves_with_path(arrays)}


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [
        (50, 35_691_912),
        (101, 63_618_696),
        *(
            pytest.param(depth, parameters, marks=pytest.mark.long)
            for depth, parameters in (
                (152, 86_621_576), (200, 93_209_992), (270, 129_861_448), (350, 163_956_168), (420, 191_891_656)
            )
        ),
    ],
)  # fmt: skip
def test_resnet_rs_has_as_many_parameters_as_published(depth: int, parameters: int) -> None:
    params, _ = make_network(160, 1000, resnet_depth=depth, resnet_width=None, **RS).shapes()
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters


@pytest.mark.parametrize("depth", [18, 20])
def test_without_the_first_projection_the_rest_stays(depth: int) -> None:
    having, lacking = (
        paths(make_network(resnet_depth=depth, stem="auto", project_first_group=project).shapes()[0])
        for project in (True, False)
    )
    first = {name for name in having if name.startswith("group1/block1/projection/")}
    assert len(first) == 3
    assert having - lacking == first
    assert not lacking - having


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rs", "v2")),
        pytest.param("evonorm_b0", marks=pytest.mark.long),
        "evonorm_s0",
    ],
)
def test_training_moves_the_statistics_and_evaluation_needs_no_key(name: str) -> None:
    network = make_network(**VARIANTS[name], groups=2)
    params, batch_stats = network.init(0)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((params, batch_stats)))
    logits, unmoved = jax.jit(lambda *arrays: network.apply(*arrays, train=False))(params, batch_stats, images())
    assert (logits.shape, logits.dtype) == ((4, 10), jnp.float32)
    assert jax.tree.all(jax.tree.map(np.array_equal, unmoved, batch_stats))

    def loss(params: Arrays, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Arrays]]:
        logits, moved = network.apply(params, batch_stats, images(), train=True, key=key, progress=1.0)
        return jnp.square(logits - 1).sum(), (logits, moved)

    step = jax.jit(jax.grad(loss, has_aux=True))
    gradients, (first, moved) = step(params, jax.random.key(0))
    assert jax.tree.structure(moved) == jax.tree.structure(batch_stats)
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, moved, batch_stats)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    _, (again, _) = step(params, jax.random.key(0))
    _, (other, _) = step(params, jax.random.key(1))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) != draws(network)


def draws(network: Network) -> bool:
    """Whether training asks for a key."""
    try:
        jax.eval_shape(functools.partial(network.apply, train=True), *network.shapes(), images())
    except ValueError as error:
        assert "key: got None, expected a key" in str(error)
        return True
    return False


@pytest.mark.parametrize(
    "options",
    [
        {"resnet_depth": 18, "se_ratio": 0, "drop_connect_rate": 0, "dropout_rate": 0},
        {"resnet_depth": 18, "dropblock_keep_prob": 0.9},  # the default in earlier versions of the original
        {"resnet_depth": 50, "dropblock_groups": "4", "dropblock_keep_prob": 1},
        {"resnet_depth": 50, "freeze_batch_norm": True, "bn_momentum": 0},
    ],
)
def test_networks_without_active_random_places_need_no_key(options: dict[str, Any]) -> None:
    assert not draws(make_network(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"drop_connect_rate": 0.1},
        {"dropblock_groups": "4", "dropblock_keep_prob": 0.9},
        {"resnet_depth": 18, "dropout_rate": 0.25},
        {"pre_activation": True, "dropblock_groups": "1, 2", "dropblock_keep_prob": 0.9},
    ],
)
def test_networks_with_random_places_need_a_key(options: dict[str, Any]) -> None:
    assert draws(make_network(**options))


@pytest.mark.long
def test_dropblock_follows_the_progress_of_the_training() -> None:
    options = {"dropblock_groups": "3,4", "dropblock_keep_prob": 0.5, "dropblock_size": 2}
    network = make_network(resnet_depth=50, resnet_width=4, **options)
    arrays = network.init(0)
    apply = jax.jit(lambda key, progress: network.apply(*arrays, images(), train=True, key=key, progress=progress)[0])
    first, second = (jax.random.key(seed) for seed in (0, 1))
    np.testing.assert_array_equal(apply(first, 0.0), apply(second, 0.0))
    assert not np.allclose(apply(first, 1.0), apply(first, 0.0), rtol=1e-2)
    assert not np.allclose(apply(first, 1.0), apply(second, 1.0), rtol=1e-2)


@pytest.mark.parametrize(
    "options", [{"resnet_depth": 18}, pytest.param(VARIANTS["evonorm_b0"], marks=pytest.mark.long)]
)
def test_frozen_norms_train_as_they_evaluate(options: dict[str, Any]) -> None:
    network = make_network(**options, freeze_batch_norm=True)
    params, batch_stats = network.init(0)
    logits = []
    for train in (False, True):
        values, after = jax.jit(lambda *arrays, train=train: network.apply(*arrays, train=train))(
            params, batch_stats, images()
        )
        logits.append(values)
        assert jax.tree.all(jax.tree.map(np.array_equal, after, batch_stats))
    np.testing.assert_allclose(*logits, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [
        pytest.param("rs", 53 + 3 + 2 * 16, marks=pytest.mark.long),
        pytest.param("v2", 53, marks=pytest.mark.long),
        ("evonorm_s0", 10),
    ],
)
def test_bfloat16_variants_convolve_in_half_precision_on_float32_parameters(name: str, convolutions: int) -> None:
    # with the small stem no map is a single pixel, whose deviation would be pure rounding
    options: dict[str, Any] = VARIANTS[name] | ({"stem": "small"} if name == "evonorm_s0" else {})
    half, full = (make_network(**options, precision=precision) for precision in ("bfloat16", "float32"))
    arrays = full.init(0)
    graph = str(jax.make_jaxpr(lambda x: half.apply(*arrays, x, train=False)[0])(images()))
    found = [line for line in graph.splitlines() if "conv_general_dilated[" in line]
    assert len(found) == convolutions
    assert all("bf16[" in line for line in found)
    logits = [
        jax.jit(lambda x, network=network: network.apply(*arrays, x, train=False)[0])(images())
        for network in (half, full)
    ]
    assert logits[0].dtype == jnp.float32
    # bfloat16 has 8 bits of precision; the error grows with the number of layers
    assert np.abs(logits[0] - logits[1]).max() < 0.05 * np.abs(logits[1]).max()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "evonorm_b0" else pytest.mark.long) for name in VARIANTS]
)
def test_variants_export_for_any_batch(name: str) -> None:
    network = make_network(**VARIANTS[name])
    arrays = network.init(0)
    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(lambda x: network.apply(*arrays, x, train=False)[0]))(
        jax.ShapeDtypeStruct((n, 32, 32, 3), jnp.float32)
    )
    expected = jax.jit(lambda x: network.apply(*arrays, x, train=False)[0])(images(3))
    np.testing.assert_allclose(exported.call(images(3)), expected, rtol=1e-5, atol=1e-6)
