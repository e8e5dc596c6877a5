"""The training step of the flax project's ImageNet example, rebuilt in Linen for comparison.

ResNet-50 as the example builds it: `nn.Conv` and `nn.BatchNorm` in bfloat16, statistics per replica, classifier in
bfloat16. The loss includes half the sum of squares of all matrices and kernels, times 1e-4. The optimizer is SGD with
Nesterov momentum. The host passes normalised images, in bfloat16. The example's `pmap` is `shard_map` here.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

NUM_CLASSES, IMAGE_SIZE = 1000, 224
BLOCKS_PER_GROUP, WIDTH = (3, 4, 6, 3), 64
WEIGHT_DECAY, LEARNING_RATE, MOMENTUM = 1e-4, 0.1, 0.9
AXIS = "batch"


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, with `4 * width` output channels."""

    width: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, in] -> [n, h/stride, w/stride, 4 * width]."""
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = functools.partial(_norm, dtype=self.dtype)
        strides, features = (self.stride, self.stride), 4 * self.width
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), strides)(y)))
        y = norm(scale_init=nn.initializers.zeros_init())(conv(features, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(features, (1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """Normalised images [n, 224, 224, 3] -> logits [n, 1000], in `dtype`."""

    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The forward pass of training, which updates the batch statistics."""
        x = nn.Conv(WIDTH, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], use_bias=False, dtype=self.dtype)(x)
        x = nn.relu(_norm(dtype=self.dtype)(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for group, blocks in enumerate(BLOCKS_PER_GROUP):
            for block in range(blocks):
                x = Bottleneck(WIDTH * 2**group, 2 if group > 0 and block == 0 else 1, self.dtype)(x)
        return nn.Dense(NUM_CLASSES, dtype=self.dtype)(x.mean((1, 2)))


def _norm(**settings: Any) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, **settings)


def train_step(mesh: Mesh, images_per_device: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """(jitted step, shapes of (state, batch) on the devices of `mesh`, which has one axis)."""
    model, optimizer = ResNet50(), optax.sgd(LEARNING_RATE, MOMENTUM, nesterov=True)
    (devices,) = mesh.axis_names

    def step(state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            own = jax.tree.map(lambda leaf: leaf[0], state["batch_stats"])
            logits, moved = model.apply({"params": params, "batch_stats": own}, batch["image"], mutable=["batch_stats"])
            one_hot = jax.nn.one_hot(batch["label"], NUM_CLASSES)
            loss = optax.softmax_cross_entropy(logits=logits, labels=one_hot).mean()
            decay = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
            return loss + WEIGHT_DECAY * 0.5 * decay, (moved, logits)

        # gradients per replica, averaged at the end; without pvary, JAX itself would sum each one separately
        params = jax.lax.pcast(state["params"], devices, to="varying")
        (loss, (moved, logits)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        gradients = jax.lax.pmean(gradients, devices)
        updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
        batch_stats = jax.tree.map(lambda leaf: leaf[None], moved["batch_stats"])
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == batch["label"]).mean()}
        new = {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}
        return new | {"batch_stats": batch_stats}, jax.lax.pmean(metrics, devices)

    placed = {"params": P(), "opt_state": P(), "batch_stats": P(devices)}
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(placed, P(devices)), out_specs=(placed, P()))
    return jax.jit(mapped, donate_argnums=0), (_state_shapes(model, optimizer, mesh), _batch(mesh, images_per_device))


def _state_shapes(model: ResNet50, optimizer: optax.GradientTransformation, mesh: Mesh) -> dict[str, Any]:
    def create() -> dict[str, Any]:
        variables = model.init(jax.random.key(0), jnp.zeros((1, IMAGE_SIZE, IMAGE_SIZE, 3), model.dtype))
        stats = jax.tree.map(lambda leaf: jnp.stack([leaf] * mesh.size), variables["batch_stats"])
        return {
            "params": variables["params"],
            "opt_state": optimizer.init(variables["params"]),
            "batch_stats": stats,
        }

    shapes = jax.eval_shape(create)
    own = shapes.pop("batch_stats")
    split = jax.tree.map(lambda leaf: _on(mesh, leaf, P(*mesh.axis_names)), own)
    return jax.tree.map(lambda leaf: _on(mesh, leaf, P()), shapes) | {"batch_stats": split}


def _batch(mesh: Mesh, images_per_device: int) -> dict[str, jax.ShapeDtypeStruct]:
    count = images_per_device * mesh.size
    image = jax.ShapeDtypeStruct((count, IMAGE_SIZE, IMAGE_SIZE, 3), jnp.bfloat16)
    label = jax.ShapeDtypeStruct((count,), jnp.int32)
    return {"image": _on(mesh, image, P(*mesh.axis_names)), "label": _on(mesh, label, P(*mesh.axis_names))}


def _on(mesh: Mesh, leaf: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
