"""A step computed by the plain layers, with which every other way to compute it must agree, up to rounding."""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from resnet_tpu.models.kernel_table import PLAIN
from resnet_tpu.options.config import Config
from resnet_tpu.training.kernel_choice.random_inputs import random_batch, random_state
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.step import TrainStep, train_step_of

_LIMIT = 3.0  # other kernels may differ from the plain layers by this many times the noise
_FEW, _MANY = 2, 16  # draws of that noise: at least, and before other kernels are reported to differ


class Reference:
    """Loss and gradients of the plain layers on the devices of a mesh, for a random state and random images."""

    def __init__(self, config: Config, mesh: Mesh) -> None:
        """config: of a run whose options are resolved."""
        self._config = config
        self._mesh = mesh
        self._step = train_step_of(network_on(config, mesh), config, mesh, kernels=PLAIN, tuned_compiler=False)
        self._plain = self._gradients(self._step, mesh)
        self._noisy: list[list[float]] = []
        self._draw(_FEW)

    @property
    def noise(self) -> float:
        """How far random changes in the last bit of the weights move loss and gradients, in the unit of `distances`."""
        return max(map(max, self._noisy))

    def distances(self, step: TrainStep, mesh: Mesh) -> list[float]:
        """How far the loss, then each gradient, of a step on these devices is from the reference.

        As fractions of the reference's norm; infinite if a value is not finite.
        """
        return _norms(self._gradients(step, mesh), self._plain)

    def why_not(self, distances: list[float]) -> str:
        """Why a step with these distances does not match the reference; empty if rounding alone explains them."""
        while not self._explains(distances) and len(self._noisy) < _MANY:
            # if the last bit decides whether a ReLU passes a value, the gradients move far, but only in some draws
            self._draw(len(self._noisy) + 1)
        if self._explains(distances):
            return ""
        return f"differs from plain by {max(distances):.1g}, where rounding alone gives {self.noise:.1g}"

    def _explains(self, distances: list[float]) -> bool:
        median_noise = max(map(statistics.median, self._noisy))
        return max(distances) <= _LIMIT * self.noise and statistics.median(distances) <= _LIMIT * median_noise

    def _draw(self, count: int) -> None:
        """Draws noise until there are `count` draws."""
        last_bit = float(jnp.finfo(self._config.model.precision).eps) / 2
        for seed in range(len(self._noisy) + 1, count + 1):
            found = self._gradients(self._step, self._mesh, last_bit, seed)
            self._noisy.append(_norms(found, self._plain))

    def _gradients(self, step: TrainStep, mesh: Mesh, last_bit: float = 0.0, seed: int = 0) -> list[np.ndarray]:
        """The loss and the gradients; the latter are read as the momentum after one step."""
        state = random_state(self._config, mesh, last_bit, seed)
        state, metrics = step(state, random_batch(self._config, mesh))
        return [np.asarray(leaf) for leaf in jax.tree.leaves((metrics["loss"], state.to_arrays()["momentum"]))]


def _norms(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    norms = [float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1)) for a, b in zip(found, expected, strict=True)]
    return [norm if np.isfinite(norm) else float("inf") for norm in norms]
