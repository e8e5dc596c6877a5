"""Whole networks: sizes, structure, initial values, types."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.models import resnet
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network, resolve_architecture
from resnet_tpu.models.named_arrays import NamedArrays
from resnet_tpu.models.named_layers import NamedLayers
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, ModelConfig


def make_model(**options: Any) -> ModelConfig:
    return Config().replace(**options).model


def make_network(image_size: int = 224, num_classes: int = 1000, **options: Any) -> Network:
    return create_network(make_model(**options), num_classes=num_classes, image_size=image_size)


def count(arrays: Arrays) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(arrays))


def leaves(arrays: Arrays) -> dict[str, Any]:
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in jax.tree.leaves_with_path(arrays)}


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [
        (18, 11_693_736), (34, 21_801_896), (50, 25_557_032), (101, 44_549_160),
        *(
            pytest.param(depth, parameters, marks=pytest.mark.long)
            for depth, parameters in (
                (152, 60_192_808), (200, 64_673_832), (270, 89_599_272), (350, 112_786_216), (420, 131_784_488)
            )
        ),
    ],
)  # fmt: skip
def test_parameter_counts_are_the_originals(depth: int, parameters: int) -> None:
    assert count(make_network(resnet_depth=depth).shapes()[0]) == parameters


@pytest.mark.parametrize(("depth", "kernels"), [(20, 271_152), (56, 851_760), (110, 1_722_672)])
def test_cifar_kernel_counts_are_the_originals(depth: int, kernels: int) -> None:
    params = leaves(make_network(32, 10, resnet_depth=depth).shapes()[0])
    assert sum(leaf.size for name, leaf in params.items() if name.endswith("kernel")) == kernels


def test_width_scales_every_layer() -> None:
    full, narrow = (leaves(make_network(resnet_depth=50, resnet_width=width).shapes()[0]) for width in (64, 8))
    for name, leaf in full.items():
        if name != "dense/bias":
            ends = [1 if size in (3, 1000) and i != 0 else 8 for i, size in enumerate(leaf.shape)]
            if name.endswith("kernel") and len(leaf.shape) == 4:
                ends[:2] = 1, 1
            assert narrow[name].shape == tuple(size // end for size, end in zip(leaf.shape, ends, strict=True)), name


def test_parameters_lie_under_the_agreed_names() -> None:
    names = set(leaves(make_network(resnet_depth=50).shapes()[0]))
    assert {"stem/conv/kernel", "stem/norm/scale", "dense/kernel", "dense/bias"} < names
    assert {f"group4/block3/{layer}/conv/kernel" for layer in ("conv1", "conv2", "conv3")} < names
    projections = {name for name in names if "projection" in name and name.endswith("kernel")}
    assert projections == {f"group{group}/block1/projection/conv/kernel" for group in (1, 2, 3, 4)}


@pytest.mark.parametrize(("depth", "last"), [(18, "conv2"), (50, "conv3")])
def test_blocks_start_as_their_shortcut(depth: int, last: str) -> None:
    params, batch_stats = make_network(resnet_depth=depth, resnet_width=8).init(0)
    for name, leaf in leaves(params).items():
        if name.endswith("scale"):
            assert (leaf == (0 if f"/{last}/" in name else 1)).all(), name
        elif name.endswith("bias"):
            assert (leaf == 0).all(), name
    for name, leaf in leaves(batch_stats).items():
        assert (leaf == (1 if name.endswith("var") else 0)).all(), name


def test_cifar_networks_start_with_all_scales_one_and_slow_statistics() -> None:
    params, _ = make_network(32, 10, resnet_depth=20).init(0)
    assert all((leaf == 1).all() for name, leaf in leaves(params).items() if name.endswith("scale"))
    assert resolve_architecture(make_model(resnet_depth=20), image_size=32).bn_momentum == 0.997
    assert resolve_architecture(make_model(resnet_depth=18), image_size=224).bn_momentum == 0.9
    assert resolve_architecture(make_model(resnet_depth=18, bn_momentum=0.5), image_size=224).bn_momentum == 0.5


def test_initial_weights_follow_from_the_seed() -> None:
    network = make_network(resnet_depth=18, resnet_width=8)
    first, again, other = (leaves(network.init(seed)[0]) for seed in (3, 3, 4))
    kernels = [name for name in first if name.endswith("kernel")]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in kernels)
    flat = [first[name].ravel()[:20].tobytes() for name in kernels]
    assert len(set(flat)) == len(flat)  # no two layers are alike
    assert all(leaf.dtype == jnp.float32 for leaf in first.values())


def test_initial_arrays_are_as_the_structure_says() -> None:
    network = make_network(resnet_depth=50, resnet_width=8)
    shapes, arrays = network.shapes(), network.init(0)
    assert jax.tree.structure(shapes) == jax.tree.structure(arrays)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), shapes, arrays))


@pytest.mark.parametrize(
    ("stem", "image_size", "is_small"),
    [("auto", 32, True), ("auto", 63, True), ("auto", 64, False), ("small", 224, True), ("imagenet", 32, False)],
)
def test_small_images_get_the_small_stem(stem: str, image_size: int, is_small: bool) -> None:
    shapes = leaves(make_network(image_size, resnet_depth=18, stem=stem).shapes()[0])
    assert shapes["stem/conv/kernel"].shape == ((3, 3, 3, 64) if is_small else (7, 7, 3, 64))


@pytest.mark.parametrize(
    ("size", "depth", "stem", "last"), [(224, 18, "imagenet", 7), (97, 50, "imagenet", 4), (30, 18, "small", 4)]
)
def test_any_image_size_is_accepted_and_halved_five_times(size: int, depth: int, stem: str, last: int) -> None:
    network = make_network(size, 7, resnet_depth=depth, stem=stem)

    def shapes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        arrays = NamedArrays(*network.shapes(), make=lambda _, shape: None)
        net = NamedLayers(network.architecture, jnp.float32, arrays)
        y = resnet.stem(net, x)
        for group in range(1, 5):
            with net.scope(f"group{group}/block1"):
                y = resnet.residual_block(net, y, group, 1)
        params, batch_stats = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), network.shapes())
        return y, network.apply(params, batch_stats, x, train=False)[0]

    features, logits = jax.eval_shape(shapes, jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32))
    assert features.shape[1:3] == (last, last)
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)


def test_an_unknown_depth_names_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="resnet_depth: got 19, expected one of 8, 18, 20, 32, 34, 44, 50, 56, 101, 110, 152, 200, 270"
    ):
        make_network(resnet_depth=19)


@pytest.mark.parametrize("depth", [18, pytest.param(50, marks=pytest.mark.long)])
def test_bfloat16_computes_in_half_precision_on_float32_parameters(depth: int) -> None:
    options = {"resnet_depth": depth, "resnet_width": 8}
    half, full = (make_network(64, 10, precision=name, **options) for name in ("bfloat16", "float32"))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half.shapes()))
    arrays = full.init(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 64, 64, 3)), jnp.float32)
    graph = str(jax.make_jaxpr(lambda x: half.apply(*arrays, x, train=False)[0])(x))
    convolutions = [line for line in graph.splitlines() if "conv_general_dilated[" in line]
    assert len(convolutions) == {18: 21, 50: 53}[depth]
    assert all("bf16[" in line for line in convolutions)
    logits = [
        jax.jit(lambda x, network=network: network.apply(*arrays, x, train=False)[0])(x) for network in (half, full)
    ]
    assert logits[0].dtype == jnp.float32
    # bfloat16 has 8 bits of precision; the error grows with the number of layers
    assert np.abs(logits[0] - logits[1]).max() < 0.03 * np.abs(logits[1]).max()


def test_apply_leaves_its_arguments_alone_and_moves_statistics_only_in_training() -> None:
    network = make_network(32, 10, resnet_depth=18, resnet_width=4, precision="float32")
    params, batch_stats = network.init(0)
    before = jax.tree.map(np.array, (params, batch_stats))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 32, 32, 3)), jnp.float32)
    for train in (False, True):
        _, after = jax.jit(lambda *arrays, train=train: network.apply(*arrays, train=train))(params, batch_stats, x)
        unmoved = jax.tree.map(np.array_equal, before[1], after)
        assert jax.tree.all(unmoved) != train
        assert any(jax.tree.leaves(unmoved)) != train
        assert jax.tree.all(jax.tree.map(np.array_equal, before, (params, batch_stats)))
