"""Training on mixtures of two images: mixup and cutmix, on the device."""

import jax
import jax.numpy as jnp

from resnet_tpu.options.config import OptimizerConfig
from resnet_tpu.parallel.placement import DeviceBatch


def mix(batch: DeviceBatch, key: jax.Array, config: OptimizerConfig) -> DeviceBatch:
    """The batch with image i mixed with image n - 1 - i.

    batch: `image` [n, s, s, 3], `label` int32 [n]. Adds `partner` int32 [n], the label of the other image, and
    `fraction` float32 [n], the share of the image's own label in the target. One fraction is drawn for the batch, from
    Beta(alpha, alpha); if both mixup_alpha and cutmix_alpha are set, a coin flip decides between the two.
    Sources: mixup arXiv:1710.09412, section 2; cutmix arXiv:1905.04899, equations 1 and 2.
    """
    coin, draw, center = jax.random.split(key, 3)
    image = batch["image"]
    other = image[::-1]
    if config.mixup_alpha and config.cutmix_alpha:
        is_mixup = jax.random.bernoulli(coin)
    else:
        is_mixup = jnp.bool_(config.mixup_alpha > 0)
    mixed, fraction = image, jnp.float32(1)
    if config.cutmix_alpha:
        mixed, fraction = _paste(image, other, jax.random.beta(draw, config.cutmix_alpha, config.cutmix_alpha), center)
    if config.mixup_alpha:
        blend = jax.random.beta(draw, config.mixup_alpha, config.mixup_alpha)
        blended = blend * image.astype(jnp.float32) + (1 - blend) * other.astype(jnp.float32)
        mixed, fraction = jnp.where(is_mixup, blended, mixed), jnp.where(is_mixup, blend, fraction)
    label = batch["label"]
    return batch | {"image": mixed, "partner": label[::-1], "fraction": jnp.broadcast_to(fraction, label.shape)}


def _paste(image: jax.Array, other: jax.Array, fraction: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(`image` with a rectangle of `other` pasted over 1 - `fraction` of its area, the fraction of `image` left).

    The rectangle's centre is anywhere; the part outside of the image is cut off, which raises the fraction.
    """
    size = image.shape[1]
    side = size * jnp.sqrt(1 - fraction)
    low, high = (
        jnp.clip(jnp.round(jax.random.uniform(key, (2,)) * size + offset), 0, size) for offset in (-side / 2, side / 2)
    )
    index = jnp.arange(size)
    rows, columns = ((index >= low[axis]) & (index < high[axis]) for axis in (0, 1))
    pasted = jnp.where((rows[:, None] & columns)[..., None], other, image)
    return pasted, 1 - (high - low).prod() / size**2
