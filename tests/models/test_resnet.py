"""Each variant of a block and of the stem, compared with one assembled by hand from layers."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.layers import ConvNorm, Statistics, average_pool, global_average, max_pool
from resnet_tpu.models.named_layers import NamedLayers, Training
from resnet_tpu.models.resnet import residual_block, resnet, squeeze_excite, stem
from tests.models.nets import TRAINING, Part, architecture, random


def assert_same(actual: jax.Array, expected: jax.Array) -> None:
    assert np.ptp(expected) > 1e-2
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def names(part: Part) -> set[str]:
    """The layers that have arrays, by the first two levels of their names."""
    return {"/".join(str(key.key) for key in path[:2]) for path, _ in jax.tree.leaves_with_path(part.params)}


def check_block(
    by_hand: Any, x: np.ndarray, *, group: int, block: int = 1, training: Training | None = None, **settings: Any
) -> Part:
    """Compares a block of the network with the same layers called one by one, on the same arrays."""
    whole = Part(lambda net, x: residual_block(net, x, group, block), architecture(**settings), x, scope="b")
    own = Part(by_hand, architecture(**settings), x, scope="b")
    assert jax.tree.structure(whole.params) == jax.tree.structure(own.params)
    whole.randomize()
    own.params = whole.params
    assert_same(whole(x, training), own(x, training))
    return whole


def test_squeeze_excite_by_hand() -> None:
    x = random(2, 5, 5, 32)
    part = Part(squeeze_excite, architecture(se_ratio=0.25), x)
    part.randomize()
    reduce, expand = (part.params["squeeze_excite"][name] for name in ("reduce", "expand"))
    squeezed = np.maximum(x.astype(np.float64).mean((1, 2)) @ reduce["kernel"][0, 0] + reduce["bias"], 0)
    gates = 1 / (1 + np.exp(-(squeezed @ expand["kernel"][0, 0] + expand["bias"])))
    assert squeezed.shape == (2, 8)
    assert_same(part(x)[:, 0, 0], gates)


@pytest.mark.parametrize(("ratio", "squeezed"), [(0.25, 8), (0.01, 1), (0.1, 3), (1.0, 32)])
def test_squeeze_excite_has_at_least_one_channel_inside(ratio: float, squeezed: int) -> None:
    params = Part(squeeze_excite, architecture(se_ratio=ratio), random(2, 4, 4, 32)).params["squeeze_excite"]
    assert params["reduce"]["kernel"].shape == (1, 1, 32, squeezed)
    assert params["expand"]["kernel"].shape == (1, 1, squeezed, 32)
    np.testing.assert_array_equal(np.concatenate([params["reduce"]["bias"], params["expand"]["bias"]]), 0)


def test_a_block_of_resnet_rs_by_hand() -> None:
    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        shortcut = net.conv_norm("projection", average_pool(x), 64, 1)
        branch = net.conv_norm("conv1", x, 16, 1, relu=True)
        branch = net.conv_norm("conv2", branch, 16, 3, 2, relu=True)
        branch = net.conv_norm("conv3", branch, 64, 1)
        return jax.nn.relu(branch * squeeze_excite(net, branch) + shortcut)

    check_block(by_hand, random(2, 7, 7, 32), group=2, se_ratio=0.25, resnetd_shortcut=True)


@pytest.mark.parametrize("pools", [True, False])
def test_the_pooled_shortcut_is_only_for_stride_2(pools: bool) -> None:
    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        shortcut = net.conv_norm("projection", x, 8, 1)
        return jax.nn.relu(net.conv_norm("conv2", net.conv_norm("conv1", x, 8, 3, relu=True), 8, 3) + shortcut)

    check_block(by_hand, random(2, 4, 4, 8), group=1, bottleneck=False, resnetd_shortcut=pools)


@pytest.mark.parametrize("pools", [True, False])
def test_the_shortcut_of_a_basic_block_is_pooled_too(pools: bool) -> None:
    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        shortcut = net.conv_norm("projection", average_pool(x) if pools else x, 16, 1, 1 if pools else 2)
        return jax.nn.relu(net.conv_norm("conv2", net.conv_norm("conv1", x, 16, 3, 2, relu=True), 16, 3) + shortcut)

    # an odd side: positions beyond the edge do not count in the average
    check_block(by_hand, random(2, 7, 7, 8), group=2, bottleneck=False, resnetd_shortcut=pools)


@pytest.mark.parametrize(
    ("bottleneck", "block"),
    [(True, 1), (False, 2), *(pytest.param(*other, marks=pytest.mark.long) for other in ((True, 2), (False, 1)))],
)
def test_a_preactivated_block_by_hand(bottleneck: bool, block: int) -> None:
    features, stride = (64 if bottleneck else 16), (2 if block == 1 else 1)

    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        normal = jax.nn.relu(net.batch_norm("norm_in", x))
        shortcut = net.conv("projection/conv", normal, features, 1, stride) if block == 1 else x
        if bottleneck:
            branch = net.conv_norm("conv1", normal, 16, 1, relu=True)
            branch = net.conv_norm("conv2", branch, 16, 3, stride, relu=True)
            return net.conv("conv3/conv", branch, features, 1) + shortcut
        return net.conv("conv2/conv", net.conv_norm("conv1", normal, 16, 3, stride, relu=True), 16, 3) + shortcut

    x = random(2, 6, 6, features)
    settings: Any = {"bottleneck": bottleneck, "pre_activation": True}
    part = check_block(by_hand, x, group=2, block=block, training=TRAINING, **settings)
    assert (part(x, TRAINING) < 0).any()  # no ReLU at the end


@pytest.mark.parametrize("pre_activation", [pytest.param(False, marks=pytest.mark.long), True])
def test_dropblock_and_drop_connect_act_where_they_should(pre_activation: bool) -> None:
    settings: dict[str, Any] = {"dropblock_groups": (4,), "dropblock_keep_prob": 0.5, "dropblock_size": 2}
    settings |= {"pre_activation": True} if pre_activation else {"drop_connect_rate": 0.5, "se_ratio": 0.25}

    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        x = net.norm_act("norm_in", x) if pre_activation else x
        sites = itertools.count(15)  # after three blocks
        shortcut = net.dropblock(net.conv_linear("projection", x, 256, 1, 2), 4, next(sites))
        branch = net.dropblock(net.conv_act("conv1", x, 64, 1), 4, next(sites))
        branch = net.dropblock(net.conv_act("conv2", branch, 64, 3, 2), 4, next(sites))
        branch = net.conv_linear("conv3", branch, 256, 1)
        if pre_activation:
            return branch + shortcut
        branch = net.dropblock(branch, 4, next(sites))
        branch = net.drop_connect(branch * squeeze_excite(net, branch), 4, next(sites))
        return jax.nn.relu(branch + shortcut)

    x = random(4, 8, 8, 16)
    part = check_block(by_hand, x, group=4, training=Training(jax.random.key(3), 1.0), **settings)
    assert not np.array_equal(part(x, Training(jax.random.key(3), 1.0)), part(x, Training(jax.random.key(4), 1.0)))


@pytest.mark.parametrize("pre_activation", [False, True])
def test_the_deep_stem_and_the_convolution_for_the_pool(pre_activation: bool) -> None:
    kind: Any = "evonorm_b0" if pre_activation else "bn_relu"
    settings = architecture(
        use_resnetd_stem=True, replace_stem_max_pool=True, pre_activation=pre_activation, norm_act_layer=kind
    )

    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        x = net.norm_act("stem/conv1/norm", net.conv("stem/conv1/conv", x, 4, 3, 2))
        x = net.norm_act("stem/conv2/norm", net.conv("stem/conv2/conv", x, 4, 3))
        x = net.conv("stem/conv3/conv", x, 8, 3)
        x = x if pre_activation else net.norm_act("stem/conv3/norm", x)
        # always a batch norm, whatever norm_act_layer says
        return jax.nn.relu(net.batch_norm("pool/norm", net.conv("pool/conv", x, 8, 3, 2)))

    x = random(2, 20, 20, 3)
    whole, own = Part(stem, settings, x), Part(by_hand, settings, x)
    assert jax.tree.map(jnp.shape, whole.params) == jax.tree.map(jnp.shape, own.params)
    assert whole(x).shape == (2, 5, 5, 8)
    assert_same(whole(x), own(x))


def test_a_preactivated_network_normalises_after_its_blocks_alone() -> None:
    settings = architecture(1, bottleneck=False, pre_activation=True)

    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        x = max_pool(net.conv("stem/conv", x, 8, 7, 2))
        with net.scope("group1/block1"):
            x = residual_block(net, x, 1, 1)
        return net.dense("dense", global_average(jax.nn.relu(net.batch_norm("norm_out", x))), 5)

    x = random(2, 16, 16, 3)
    whole, own = Part(lambda net, x: resnet(net, x, 5), settings, x), Part(by_hand, settings, x)
    assert names(whole) == names(own)
    assert_same(whole(x), own(x))


@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_the_stem_pools_as_asked(padding: Any) -> None:
    x = random(2, 16, 16, 3)
    whole = Part(stem, architecture(pool_padding=padding), x)
    own = Part(lambda net, x: max_pool(net.conv_norm("stem", x, 8, 7, 2, relu=True), padding), architecture(), x)
    assert_same(whole(x), own(x))


@pytest.mark.parametrize("bottleneck", [False, pytest.param(True, marks=pytest.mark.long)])
def test_blocks_run_in_the_order_of_their_numbers(bottleneck: bool) -> None:
    # With ten blocks and more: sorted as text, block10 would come before block2.
    settings = architecture(11, bottleneck=bottleneck)

    def by_hand(net: NamedLayers, x: jax.Array) -> jax.Array:
        x = stem(net, x)
        for block in range(1, 12):
            with net.scope(f"group1/block{block}"):
                x = residual_block(net, x, 1, block)
        return net.dense("dense", global_average(x), 5)

    x = random(2, 16, 16, 3)
    whole, own = Part(lambda net, x: resnet(net, x, 5), settings, x), Part(by_hand, settings, x)
    whole.randomize()
    own.params = whole.params
    assert_same(jax.jit(whole)(x), jax.jit(own)(x))


def test_every_random_place_of_a_network_draws_its_own() -> None:
    settings = architecture(
        2, 1, 1, 2, dropblock_groups=(3, 4), dropblock_keep_prob=0.9, drop_connect_rate=0.1, dropout_rate=0.25
    )
    asked = []

    class Recording(Training):
        def key_of(self, site: int) -> jax.Array:
            asked.append(site)
            return jax.random.key(site)

    x = random(2, 32, 32, 3)
    jax.eval_shape(lambda x: Part(lambda net, x: resnet(net, x, 5), settings, x)(x, Recording()), x)
    # each of six blocks has five sites, of which groups 1 and 2 use only drop connect's; then one site for dropout
    assert asked == [4, 9, 14, *range(15, 31)]


def test_kernels_for_whole_blocks_leave_later_random_places_as_they_are() -> None:
    settings = architecture(2, 1, 1, 2, dropout_rate=0.25)
    asked = []

    class Recording(Training):
        def key_of(self, site: int) -> jax.Array:
            asked.append(site)
            return jax.random.key(site)

    def block(x: jax.Array, branch: Sequence[ConvNorm], projection: ConvNorm | None, *, stride: int, **_: Any) -> Any:
        y = jnp.zeros((x.shape[0], x.shape[1] // stride, x.shape[2] // stride, branch[-1].scale.size))
        every = [conv for conv in (*branch, projection) if conv]
        return y, [Statistics(conv.bias[None], conv.scale[None], 2) for conv in every]

    x = random(2, 32, 32, 3)
    whole = Part(lambda net, x: resnet(net, x, 5), settings, x)
    for kernels in (PLAIN, Kernels(block=block)):
        jax.eval_shape(lambda x, kernels=kernels: whole(x, Recording(), kernels), x)
    assert asked == [30, 30]
