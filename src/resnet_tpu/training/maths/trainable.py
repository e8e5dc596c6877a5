"""Which parameters are trained, and at which relative learning rates."""

import fnmatch

import jax

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import OptimizerConfig

HEAD = "dense"
"""Name of the classifier in a network."""


def learning_rate_factors(network: Network, config: OptimizerConfig) -> Arrays:
    """For each parameter, the factor on its learning rate, a float: 0 if `freeze` or `freeze_batch_norm` freezes it.

    A pattern in `freeze` selects the parameters that it matches, and all parameters below a module that it matches.
    Raises UserError for a pattern that matches nothing.
    """
    params, _ = network.shapes()
    patterns = [pattern.strip() for pattern in config.freeze.split(",") if pattern.strip()]
    names = [name for name, _ in leaves(params)]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            modules = sorted({name.split("/")[0] for name in names})
            expected = f"a pattern that matches parameters, under {', '.join(modules)}"
            raise UserError("freeze", pattern, expected, f"See convert --inspect.{nearest(pattern, modules)}")

    def factor(path: tuple[str, ...]) -> float:
        name = "/".join(path)
        is_norm = any(part.startswith("norm") for part in path)
        if (network.architecture.freeze_batch_norm and is_norm) or any(_matches(name, pattern) for pattern in patterns):
            return 0.0
        return config.head_learning_rate_multiplier if path[0] == HEAD else 1.0

    return jax.tree_util.tree_map_with_path(lambda path, _: factor(tuple(str(key.key) for key in path)), params)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern.rstrip('/')}/*")
