"""The residual network, from images to logits. Source: arXiv:1512.03385, with the stride in the 3x3 convolution.

Activations are [n, h, w, c]. The arrays of a layer are stored under its name: group1/block1/conv1 and so on.
"""

import jax

from resnet_tpu.models.layers import average_pool, global_average, max_pool
from resnet_tpu.models.named_layers import NamedLayers


def resnet(net: NamedLayers, images: jax.Array, num_classes: int) -> jax.Array:
    """images [n, h, w, 3], normalised -> logits float32 [n, num_classes]."""
    x = net.outputs["stem"] = stem(net, images)
    for group, blocks in enumerate(net.architecture.blocks_per_group, start=1):
        for block in range(1, blocks + 1):
            with net.scope(f"group{group}/block{block}"):
                x = residual_block(net, x, group, block)
        net.outputs[f"group{group}"] = x
    if net.architecture.pre_activation:
        x = net.norm_act("norm_out", x)
    x = net.outputs["pooled"] = global_average(x)
    return net.dense("dense", net.dropout(x, net.architecture.dropout_site), num_classes)


def stem(net: NamedLayers, x: jax.Array) -> jax.Array:
    """[n, h, w, 3] -> [n, h/4, w/4, width]; the small stem keeps height and width."""
    settings = net.architecture
    name, size, stride = ("stem", 3, 1) if settings.small_stem else ("stem", 7, 2)
    pool = None if settings.small_stem or settings.replace_stem_max_pool else settings.pool_padding
    if settings.use_resnetd_stem:  # three 3x3 convolutions in place of the 7x7: arXiv:1812.01187, figure 2
        half = max(1, settings.width // 2)
        x = net.conv_act("stem/conv1", x, half, 3, stride=2)
        x = net.conv_act("stem/conv2", x, half, 3)
        name, size, stride = "stem/conv3", 3, 1

    if settings.pre_activation:  # the blocks begin with a norm of their own
        x = net.conv(f"{name}/conv", x, settings.width, size, stride)
        x = max_pool(x, pool) if pool else x
    else:
        x = net.conv_norm(name, x, settings.width, size, stride, relu=True, pool=pool)
    if settings.replace_stem_max_pool:
        x = net.conv_norm("pool", x, settings.width, 3, stride=2, relu=True)
    return x


def residual_block(net: NamedLayers, x: jax.Array, group: int, block: int) -> jax.Array:
    """relu(shortcut(x) + branch(x)); groups after the first halve height and width and double the channels.

    In a pre-activated network (arXiv:1603.05027) it is shortcut + branch(relu(norm(x))), where the shortcut is x itself
    or a projection of relu(norm(x)).
    """
    settings = net.architecture
    stride = 2 if group > 1 and block == 1 else 1
    if (y := net.block(x, stride)) is not None:
        return y

    shortcut = x
    if settings.pre_activation:
        x = net.norm_act("norm_in", x)
    if block == 1 and (group > 1 or settings.project_first_group):
        shortcut = projection(net, x, group, stride)
    if not settings.bottleneck:
        branch = basic_branch(net, x, group, block, stride)
    else:
        shortcut = net.dropblock(shortcut, group, settings.first_site(group, block))
        branch = bottleneck_branch(net, x, group, block, stride)
    return branch + shortcut if settings.pre_activation else net.add_relu(branch, shortcut)


def projection(net: NamedLayers, x: jax.Array, group: int, stride: int) -> jax.Array:
    """The shortcut where the number of channels changes: a 1x1 convolution, in ResNet-D after an average pool."""
    if net.architecture.resnetd_shortcut and stride == 2:
        x, stride = average_pool(x), 1
    return net.conv_linear("projection", x, net.architecture.features(group), 1, stride)


def basic_branch(net: NamedLayers, x: jax.Array, group: int, block: int, stride: int) -> jax.Array:
    """Two 3x3 convolutions."""
    settings = net.architecture
    (between,) = settings.inner(group, block)
    x = net.conv_act("conv1", x, between, 3, stride)
    return net.conv_linear("conv2", x, settings.features(group), 3, zero_scale=settings.zero_scale)


def bottleneck_branch(net: NamedLayers, x: jax.Array, group: int, block: int, stride: int) -> jax.Array:
    """1x1, 3x3 and 1x1 convolutions, the first two with a quarter of the channels."""
    settings = net.architecture
    before, after = settings.inner(group, block)
    site = settings.first_site(group, block)  # of the shortcut
    x = net.dropblock(net.conv_act("conv1", x, before, 1), group, site + 1)
    x = net.dropblock(net.conv_act("conv2", x, after, 3, stride), group, site + 2)
    x = net.conv_linear("conv3", x, settings.features(group), 1, zero_scale=settings.zero_scale)
    if settings.pre_activation:  # the original's branch ends here
        return x
    x = net.dropblock(x, group, site + 3)
    if settings.se_ratio:
        x = x * squeeze_excite(net, x)
    return net.drop_connect(x, group, site + 4)


def squeeze_excite(net: NamedLayers, x: jax.Array) -> jax.Array:
    """A factor from 0 to 1 for each channel, [n, 1, 1, c], from the means of all channels. Source: arXiv:1709.01507."""
    squeezed = max(1, int(x.shape[-1] * net.architecture.se_ratio))
    means = global_average(x)[:, None, None, :]
    with net.scope("squeeze_excite"):
        reduced = net.conv("reduce", means, squeezed, 1, bias=True)
        return jax.nn.sigmoid(net.conv("expand", jax.nn.relu(reduced), x.shape[-1], 1, bias=True))
