"""Removes the masked filters of a pruned network, which then computes the same logits in less time and memory.

Only the inner convolutions of blocks are narrowed: those whose output only the block itself uses. Convolutions whose
output is added to a shortcut keep their width and their masks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from resnet_tpu.checkpoints import reading
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.checkpoints.reading import Checkpoint
from resnet_tpu.checkpoints.writing import check_target, write_model_dir
from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import EPSILON, Architecture
from resnet_tpu.models.arrays import Arrays, require_finite
from resnet_tpu.models.from_options import network_of, resolve_architecture
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import startup
from resnet_tpu.pruning.sizes import Size, size_of
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.training.compiler_options import required_options_for
from resnet_tpu.training.photos_seen import inherit_photos

_IMAGES = 16
"""Number of random images on which the logits are compared."""

_DO = "The weights are finite, but too large: take an earlier checkpoint."


@dataclass(frozen=True)
class Compaction:
    """Size of a network and bytes of its stored arrays, before and after, and how much its logits changed.

    On random images, in float32: `difference` is the largest change of a logit, `largest` the largest |logit|.
    """

    before: Size
    after: Size
    bytes_before: int
    bytes_after: int
    difference: float
    largest: float


def compact_checkpoint(source: str, target: str, *, multiple_of: int = 1) -> Compaction:
    """Writes the network of a checkpoint, or of the newest one of a model_dir, as a new model_dir; see `compact`."""
    check_target(target, "model_dir")
    path = reading.find(source)
    startup.start_jax(use_tpu=config_of(reading.read_meta(path)).run.use_tpu)
    checkpoint = reading.load_all(path)
    require_finite(checkpoint.arrays, f"step {checkpoint.step} in {source}", "Take an earlier checkpoint.")
    config, arrays = compact(checkpoint, multiple_of=multiple_of)
    old_config = config_of(checkpoint.meta)
    before, after = (_logits(options, tree) for options, tree in ((old_config, checkpoint.arrays), (config, arrays)))
    for logits in (before, after):
        check_finite(f"Logits at step {checkpoint.step}, {_IMAGES} random images", logits, lambda: _DO)
    write_model_dir(target, config, arrays, checkpoint.meta["class_names"])
    inherit_photos(target, path)
    return Compaction(
        size_of(old_config, None),
        size_of(config, None),
        reading.stored_bytes(path),
        reading.stored_bytes(reading.find(target)),
        float(np.abs(after - before).max()),
        float(np.abs(before).max()),
    )


def _logits(config: Config, arrays: Arrays) -> np.ndarray:
    """Logits float32 [images, classes] of random images, which are the same for all networks of one image size."""
    network = network_of(config.replace(precision="float32"))
    side = config.data.image_size
    images = np.random.default_rng(0).standard_normal((_IMAGES, side, side, 3), np.float32)
    options = required_options_for()
    apply = jax.jit(lambda *given: network.apply(*given, train=False)[0], compiler_options=options)
    return np.asarray(apply(arrays["params"], arrays["batch_stats"], jnp.asarray(images)))


def render(compaction: Compaction) -> RenderableType:
    """A table of the sizes before and after, and how closely the logits agree."""
    table = Table("", "before", "after", "left")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "parameters": (compaction.before.parameters, compaction.after.parameters),
        "multiply-adds per image": (compaction.before.multiply_adds, compaction.after.multiply_adds),
        "bytes of stored arrays": (compaction.bytes_before, compaction.bytes_after),
    }
    for name, (before, after) in rows.items():
        table.add_row(name, f"{before:,}", f"{after:,}", f"{after / before:.1%}")
    moved = f"no logit moved by more than {compaction.difference:.1g} (the largest: {compaction.largest:.2g})"
    return Group(table, f"{_IMAGES} random images: {moved}")


def compact(checkpoint: Checkpoint, *, multiple_of: int = 1) -> tuple[Config, Arrays]:
    """The options and arrays of a checkpoint's network without the filters inside blocks that are masked entirely.

    Such a filter outputs 0 everywhere, which its batch norm and ReLU turn into a constant. If that is not 0, it affects
    the next convolution, though less at the borders. All such channels of a layer are merged into one, whose batch norm
    has scale 0 and bias 1; its weights in the next layer are the sum of theirs, each times its constant. So evaluation
    computes the same logits, up to rounding. Momentum and moving averages are narrowed too. Masks stay if they mask
    further weights. Channels that stay 0 round each width up to a multiple of `multiple_of`, but not beyond the
    original width. Raises UserError if too few whole filters are masked, and for normalisations other than batch norm.
    """
    config = config_of(checkpoint.meta)
    if config.model.norm_act_layer != "bn_relu":
        expected = "bn_relu: only with it is an empty channel a known constant"
        raise UserError("norm_act_layer", config.model.norm_act_layer, expected, "Keep the network and its masks.")
    architecture = resolve_architecture(config.model, image_size=config.data.image_size)
    if "masks" not in checkpoint.arrays:
        do = "Prune whole filters first: resnet-tpu prune MODEL_DIR --method=prune_resnet56_A, or another table."
        raise UserError("Network to compact", "no masks", "one that was pruned by whole filters", do)
    arrays = jax.tree.map(np.asarray, checkpoint.arrays)  # new dicts, which are modified below
    widths = [_narrow(arrays, *names, multiple_of) for names in _inner(architecture)]
    before = [width for group, block in _blocks(architecture) for width in architecture.inner(group, block)]
    if widths == before:
        choose = "Lower multiple_of, or choose" if multiple_of > 1 else "Choose"
        do = f"{choose} a method that removes filters: masks of single weights do not make a network smaller."
        expected = "more of them inside blocks, to reach a lower width"
        raise UserError("Network to compact", "too few filters masked as a whole", expected, do)
    if all(mask.all() for mask in jax.tree.leaves(arrays["masks"])):
        del arrays["masks"]
    config = config.replace(inner_channels=",".join(map(str, widths)))
    return config, arrays


def _blocks(architecture: Architecture) -> Iterator[tuple[int, int]]:
    """(group, block) of every block, counted from 1."""
    for group, blocks in enumerate(architecture.blocks_per_group, 1):
        for block in range(1, blocks + 1):
            yield group, block


def _inner(architecture: Architecture) -> Iterator[tuple[str, str, str, str]]:
    """(group, block, inner convolution, following convolution), as named in the arrays, of all inner convolutions."""
    for group, block in _blocks(architecture):
        for number in range(1, architecture.num_inner + 1):
            yield f"group{group}", f"block{block}", f"conv{number}", f"conv{number + 1}"


def _narrow(arrays: Arrays, group: str, block: str, layer: str, following: str, multiple_of: int) -> int:
    """Removes the masked filters of one convolution, in place. Returns its new number of channels."""

    def at(tree: Arrays, name: str) -> Arrays:
        return tree[group][block][name]

    live = at(arrays["masks"], layer)["conv"]["kernel"].any((0, 1, 2))
    weights = [arrays, *([arrays["ema"]] if "ema" in arrays else [])]
    contributions = [  # what the empty channels add at each tap: [h, w, out]
        np.tensordot(
            at(tree["params"], following)["conv"]["kernel"][:, :, ~live],
            _constants(at(tree["params"], layer)["norm"], at(tree["batch_stats"], layer)["norm"])[~live],
            ((2,), (0,)),
        )
        for tree in weights
    ]
    is_constant = not live.any() or any(contribution.any() for contribution in contributions)
    num_used = int(live.sum()) + int(is_constant)
    width = min(-(-num_used // multiple_of) * multiple_of, live.size)
    num_added = width - int(live.sum())  # the first is the merged constant channel, if there is one

    def cut(variables: Arrays, axis: int, constant: float | np.ndarray = 0, padding: float | np.ndarray = 0) -> None:
        kernel = np.moveaxis(variables["conv"]["kernel"], axis, 0)
        added = np.full((num_added, *kernel.shape[1:]), padding, kernel.dtype)
        added[:1] = constant
        variables["conv"]["kernel"] = np.moveaxis(np.concatenate([kernel[live], added]), 0, axis)

    def cut_norm(norm: Arrays, **added: float) -> None:
        for name, value in added.items():
            norm[name] = np.append(norm[name][live], np.full(num_added, value, np.float32))

    for tree, contribution in zip(weights, contributions, strict=True):
        cut(at(tree["params"], layer), 3)
        cut_norm(at(tree["params"], layer)["norm"], scale=0.0, bias=1.0)
        at(tree["params"], layer)["norm"]["bias"][num_used:] = 0
        cut_norm(at(tree["batch_stats"], layer)["norm"], mean=0.0, var=1.0)
        cut(at(tree["params"], following), 2, contribution)
    cut(at(arrays["momentum"], layer), 3)
    cut_norm(at(arrays["momentum"], layer)["norm"], scale=0.0, bias=0.0)
    cut(at(arrays["momentum"], following), 2)
    next_masks = at(arrays["masks"], following)
    mask = next_masks["conv"]["kernel"]
    cut(at(arrays["masks"], layer), 3, constant=True, padding=True)
    # a following filter that is masked entirely must stay so, because it is removed next
    cut(next_masks, 2, constant=mask[:, :, ~live].any(2), padding=mask.any((0, 1, 2)))
    return width


def _constants(norm: Arrays, statistics: Arrays) -> np.ndarray:
    """The output of batch norm and ReLU for input 0, for each channel, float64."""
    factor = norm["scale"] / np.sqrt(statistics["var"].astype(np.float64) + EPSILON)
    return np.maximum(norm["bias"] - statistics["mean"] * factor, 0)
