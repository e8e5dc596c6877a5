"""Each variant of a block and of the stem, put together by hand from its layers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.blocks import BasicBlock, BottleneckBlock, ConvNorm, Maker, SqueezeExcite
from resnet_tpu.models.layers import average_pool, global_average, max_pool
from resnet_tpu.models.normed import active
from resnet_tpu.models.norms import BatchNorm, EvoNormB0
from resnet_tpu.models.resnet import ResNet
from resnet_tpu.models.training import Training


def make_maker(bottleneck: bool = True, **settings: Any) -> Maker:
    architecture = Architecture((1, 1, 1, 1), bottleneck=bottleneck, width=8, zero_scale=False, **settings)
    return Maker(architecture, jnp.float32, np.random.default_rng(0))


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def assert_same(actual: jax.Array, expected: jax.Array) -> None:
    assert np.ptp(expected) > 1e-2
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_squeeze_excite_by_hand() -> None:
    module, x = SqueezeExcite(32, make=make_maker(se_ratio=0.25)), random(2, 5, 5, 32)
    assert module.reduce.bias is not None
    assert module.expand.bias is not None
    module.reduce.bias[...], module.expand.bias[...] = random(8), random(32)
    means = np.asarray(x, np.float64).mean((1, 2))
    squeezed = np.maximum(means @ np.asarray(module.reduce.kernel[0, 0]) + np.asarray(module.reduce.bias[...]), 0)
    gates = 1 / (1 + np.exp(-(squeezed @ np.asarray(module.expand.kernel[0, 0]) + np.asarray(module.expand.bias[...]))))
    assert squeezed.shape == (2, 8)
    assert_same(module(x), jnp.asarray(np.asarray(x) * gates[:, None, None, :], jnp.float32))


@pytest.mark.parametrize(("ratio", "squeezed"), [(0.25, 8), (0.01, 1), (0.1, 3), (1.0, 32)])
def test_squeeze_excite_has_at_least_one_channel_inside(ratio: float, squeezed: int) -> None:
    module = SqueezeExcite(32, make=make_maker(se_ratio=ratio))
    assert module.reduce.kernel.shape == (1, 1, 32, squeezed)
    assert module.expand.kernel.shape == (1, 1, squeezed, 32)
    for conv in (module.reduce, module.expand):
        assert conv.bias is not None
        np.testing.assert_array_equal(conv.bias[...], 0)


def test_a_block_of_resnet_rs_by_hand() -> None:
    make = make_maker(se_ratio=0.25, resnetd_shortcut=True)
    block = BottleneckBlock(16, 8, 2, inner=(8, 8), group=2, is_first=True, make=make)
    x = random(2, 7, 7, 16)
    assert block.projection is not None
    assert block.squeeze_excite is not None
    assert block.projection.conv.stride == 1
    branch = block.conv3(block.conv2(block.conv1(x, None), None), None)
    expected = nnx.relu(block.squeeze_excite(branch) + block.projection(average_pool(x), None))
    assert expected.shape == (2, 4, 4, 32)
    assert_same(block(x, None), expected)


def test_the_pooled_shortcut_is_only_for_stride_2() -> None:
    block = BottleneckBlock(16, 8, 1, inner=(8, 8), group=1, is_first=True, make=make_maker(resnetd_shortcut=True))
    assert not block.pools_shortcut
    assert block.projection is not None
    x = random(2, 4, 4, 16)
    branch = block.conv3(block.conv2(block.conv1(x, None), None), None)
    assert_same(block(x, None), nnx.relu(branch + block.projection(x, None)))


@pytest.mark.parametrize("pools", [True, False])
def test_the_shortcut_of_a_basic_block_is_pooled_too(pools: bool) -> None:
    make = make_maker(bottleneck=False, resnetd_shortcut=pools)
    block = BasicBlock(8, 16, 2, inner=(16,), group=2, is_first=True, make=make)
    x = random(2, 7, 7, 8)  # an odd side: what is missing does not count in the average
    assert block.projection is not None
    assert block.projection.conv.stride == (1 if pools else 2)
    shortcut = block.projection(average_pool(x) if pools else x, None)
    assert_same(block(x, None), nnx.relu(block.conv2(block.conv1(x, None), None) + shortcut))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("bottleneck", [True, False])
def test_a_preactivated_block_by_hand(bottleneck: bool, is_first: bool) -> None:
    make = make_maker(bottleneck, pre_activation=True)
    features = 32 if bottleneck else 8
    kind = BottleneckBlock if bottleneck else BasicBlock
    inner = (8, 8) if bottleneck else (8,)
    block = kind(features, 8, 2 if is_first else 1, inner=inner, group=2, is_first=is_first, make=make)
    x = random(2, 6, 6, features)
    norm_in = BatchNorm(features, momentum=0.9, num_groups=1)  # new, like the block's own
    normal = nnx.relu(norm_in(x, Training()))
    branch = block.conv1(normal, Training())
    if isinstance(block, BottleneckBlock):
        last = block.conv3
        branch = block.conv2(branch, Training())
    else:
        last = block.conv2
    assert last.norm is None
    if is_first:
        assert block.projection is not None
        assert block.projection.norm is None
        shortcut = block.projection.conv(normal)
    else:
        assert block.projection is None
        shortcut = x
    expected = last.conv(branch) + shortcut
    assert (expected < 0).any()  # no ReLU at the end
    assert_same(block(x, Training()), expected)


@pytest.mark.parametrize("pre_activation", [False, True])
def test_dropblock_and_drop_connect_act_where_they_should(pre_activation: bool) -> None:
    random_places: dict[str, Any] = {"dropblock_groups": (4,), "dropblock_keep_prob": 0.5, "dropblock_size": 2}
    if not pre_activation:
        random_places |= {"drop_connect_rate": 0.5, "se_ratio": 0.25}
    make = make_maker(pre_activation=pre_activation, **random_places)
    block = BottleneckBlock(16, 8, 1, inner=(8, 8), group=4, is_first=True, make=make)
    step = Training(jax.random.key(3), 1.0)
    x = random(4, 4, 4, 16)
    assert block.projection is not None
    normal = x if block.norm_in is None else block.norm_in(x, Training())
    shortcut = block.dropblock_shortcut(block.projection(normal, Training()), step)
    branch = block.dropblock1(block.conv1(normal, Training()), step)
    branch = block.dropblock2(block.conv2(branch, Training()), step)
    branch = block.conv3(branch, Training())
    if pre_activation:
        expected = branch + shortcut
    else:
        assert block.squeeze_excite is not None
        branch = block.squeeze_excite(block.dropblock3(branch, step))
        expected = nnx.relu(block.drop_connect(branch, step) + shortcut)
    assert_same(block(x, step), expected)
    places = (block.dropblock_shortcut, block.dropblock1, block.dropblock2, block.dropblock3, block.drop_connect)
    assert len({place.number for place in places}) == 5


def test_random_places_of_a_network_have_numbers_of_their_own_and_the_shares_of_their_group() -> None:
    architecture = Architecture(
        (2, 1, 1, 2), bottleneck=True, width=4, dropblock_groups=(3, 4), dropblock_keep_prob=0.9,
        drop_connect_rate=0.1, dropout_rate=0.25, batch_norm_groups=2,
    )  # fmt: skip
    network = ResNet(architecture, 5, dtype=jnp.float32, rng=None)
    blocks = [module for _, module in nnx.iter_graph(network) if isinstance(module, BottleneckBlock)]
    numbers = [network.dropout.number]
    for block in blocks:
        places = (block.dropblock_shortcut, block.dropblock1, block.dropblock2, block.dropblock3)
        numbers += [place.number for place in places] + [block.drop_connect.number]
        assert {place.num_groups for place in places} == {2}
    assert sorted(numbers) == list(range(6 * 5 + 1))
    assert network.dropout.rate == 0.25
    shares = {
        group: {(round(block.dropblock1.share, 6), round(block.drop_connect.rate, 6)) for block in members.values()}
        for group in (1, 2, 3, 4)
        for members in [getattr(network, f"group{group}")]
    }
    assert shares == {1: {(0.0, 0.04)}, 2: {(0.0, 0.06)}, 3: {(0.025, 0.08)}, 4: {(0.1, 0.1)}}


@pytest.mark.parametrize("pre_activation", [False, True])
def test_the_deep_stem_and_the_convolution_for_the_pool(pre_activation: bool) -> None:
    architecture = Architecture(
        (1,), bottleneck=True, width=8, use_resnetd_stem=True, replace_stem_max_pool=True,
        pre_activation=pre_activation, norm_act_layer="evonorm_b0" if pre_activation else "bn_relu",
    )  # fmt: skip
    network = ResNet(architecture, 5, dtype=jnp.float32, rng=np.random.default_rng(0))
    stem, pool = network.stem, network.pool
    assert not isinstance(stem, ConvNorm)
    assert pool is not None
    shapes = [conv.conv.kernel.shape for conv in (stem.conv1, stem.conv2, stem.conv3, pool)]
    assert shapes == [(3, 3, 3, 4), (3, 3, 4, 4), (3, 3, 4, 8), (3, 3, 8, 8)]
    assert [conv.conv.stride for conv in (stem.conv1, stem.conv2, stem.conv3, pool)] == [2, 1, 1, 2]
    inner = EvoNormB0 if pre_activation else BatchNorm
    assert isinstance(stem.conv1.norm, inner)
    assert isinstance(stem.conv2.norm, inner)
    assert (stem.conv3.norm is None) == pre_activation
    assert isinstance(pool.norm, BatchNorm)  # whatever norm_act_layer says
    assert pool.norm.relu
    x = random(2, 20, 20, 3)
    y = pool(active(stem.lazy(x, None)), None)
    assert y.shape == (2, 5, 5, 8)
    y = getattr(network, "group1")["block1"](y, None)  # noqa: B009
    if pre_activation:
        assert isinstance(network.norm_out, EvoNormB0)
        y = network.norm_out(y, None)
    assert_same(network(x, None), network.dense(global_average(y)))


def test_a_preactivated_stem_is_a_convolution_alone() -> None:
    architecture = Architecture((1,), bottleneck=False, width=8, pre_activation=True)
    network = ResNet(architecture, 5, dtype=jnp.float32, rng=np.random.default_rng(0))
    assert isinstance(network.stem, ConvNorm)
    assert network.stem.norm is None
    assert network.norm_out is not None
    x = random(2, 16, 16, 3)
    y = getattr(network, "group1")["block1"](max_pool(network.stem.conv(x)), None)  # noqa: B009
    assert_same(network(x, None), network.dense(global_average(network.norm_out(y, None))))


def test_the_network_pools_as_asked() -> None:
    x = random(2, 16, 16, 3)
    for padding in ("same", "symmetric"):
        architecture = Architecture((1,), bottleneck=False, width=8, pool_padding=padding)
        network = ResNet(architecture, 5, dtype=jnp.float32, rng=np.random.default_rng(0))
        assert isinstance(network.stem, ConvNorm)
        assert isinstance(network.stem.norm, BatchNorm)
        y = max_pool(network.stem.norm(network.stem.conv(x), None), padding)
        y = getattr(network, "group1")["block1"](y, None)  # noqa: B009
        np.testing.assert_array_equal(network(x, None), network.dense(global_average(y)))
