"""`resnet-tpu compact`: removes the filters that pruning masked."""

from dataclasses import dataclass

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.options.fields import option
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class CompactOptions:
    """How narrow the layers become."""

    multiple_of: int = option(
        1,
        "Round the channels of each layer up to a multiple of this, but not beyond their original number. 8 is faster "
        "on many processors.",
        at_least=1,
    )


@Command(
    "resnet-tpu compact",
    "The logits stay the same up to rounding; the difference is shown. For networks pruned by whole filters, for "
    "example with `resnet-tpu prune --method=prune_resnet56_A`. OUT is a model_dir that every command takes.",
    examples=(
        "resnet-tpu compact runs/cifar/pruning/seed_0/lr_rewinding/level_03 runs/small",
        "resnet-tpu compact runs/cifar/pruning/seed_0/lr_rewinding/level_03 runs/small --multiple_of=8",
    ),
    arguments=(
        Argument("checkpoint", "CHECKPOINT", "A checkpoint, or a model_dir for its newest one."),
        Argument("out", "OUT", "Folder to write; it must be new."),
    ),
    groups=[Group("what to do", CompactOptions)],
)
def compact(given: Given) -> None:
    """Remove from a network the filters that pruning masked, which makes it smaller and faster."""
    options = given.fill(CompactOptions)

    from resnet_tpu.pruning.compact import compact_checkpoint, render

    source, target = given.values["checkpoint"], given.values["out"]
    make_console().print(render(compact_checkpoint(source, target, multiple_of=options.multiple_of)))
