"""`resnet-tpu compact`: a network without the filters that pruning masked."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.options.fields import expand_home, option, options_of
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class CompactOptions:
    """How narrow the layers become."""

    multiple_of: int = option(
        1,
        "Round the channels of a layer up to a multiple of this, as far as they were as many: 8 is faster on many "
        "processors.",
        at_least=1,
    )


def compact(arguments: Sequence[str]) -> None:
    """Take the filters that pruning masked out of a network, which makes it smaller and faster."""
    parser = Parser(
        "resnet-tpu compact",
        f"{compact.__doc__}\n\nThe logits stay as they are, but for rounding, which is shown. For networks that were "
        "pruned by whole filters, as --method=prune_resnet56_A of `resnet-tpu prune` does. OUT is a model_dir that "
        "every verb takes.",
        usage="CHECKPOINT OUT [options]",
        examples=(
            "resnet-tpu compact runs/cifar/pruning/seed_0/lr_rewinding/level_03 runs/small",
            "resnet-tpu compact runs/cifar/pruning/seed_0/lr_rewinding/level_03 runs/small --multiple_of=8",
        ),
    )
    parser.add_argument(
        "checkpoint", type=expand_home, metavar="CHECKPOINT", help="A checkpoint, or a model_dir: its newest one."
    )
    parser.add_argument("out", type=expand_home, metavar="OUT", help="Folder to write; it must be new.")
    parser.add_options("what to do", options_of("compact", CompactOptions).values())
    given = parser.parse(arguments)
    source, target = given.pop("checkpoint"), given.pop("out")
    options = fill(CompactOptions, given)

    from resnet_tpu.pruning.compact import compact_checkpoint, render

    make_console().print(render(compact_checkpoint(source, target, multiple_of=options.multiple_of)))
