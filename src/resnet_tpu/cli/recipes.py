"""`resnet-tpu recipes`."""

import textwrap

from resnet_tpu import __version__
from resnet_tpu.cli.arguments import Argument
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.help_text import entries
from resnet_tpu.options.overrides import to_yaml


@Command(
    "resnet-tpu recipes",
    "The file holds what differs from the defaults, and is for --config_file.",
    examples=(
        "resnet-tpu recipes",
        "resnet-tpu recipes finetune",
        "resnet-tpu recipes finetune > mine.yaml          # change it: train PHOTOS --config_file=mine.yaml",
    ),
    arguments=(
        Argument("name", "NAME", "A recipe to print. Default: list them all.", is_required=False, is_path=False),
    ),
)
def recipes(given: Given) -> None:
    """List the recipes that --recipe takes, or print one as a file of options."""
    name = given.values["name"]
    print(_one(name) if name else _describe_all())


def _describe_all() -> str:
    """A sentence on each recipe; recipes of one family, which differ in size, are listed together."""
    from resnet_tpu.recipes import FAMILIES

    single = {name: family.summary for family in FAMILIES for name in family.members if len(family.members) == 1}
    lines = [entries(single)]
    for family in FAMILIES:
        if len(family.members) > 1:
            listed = textwrap.fill(", ".join(family.members), 106, break_on_hyphens=False)
            lines += ["", textwrap.fill(family.summary, 110), textwrap.indent(listed, "  ")]
    return "\n".join([*lines, "", "resnet-tpu recipes NAME prints one."])


def _one(name: str) -> str:
    """The options of one recipe as a file, headed by its description."""
    from resnet_tpu.recipes import FAMILIES, find_recipe

    config = find_recipe(name)
    about = next(family.about for family in FAMILIES if name in family.members)
    heading = textwrap.fill(f"{name}, resnet-tpu {__version__}. {about}", 108)
    return f"{textwrap.indent(heading, '# ')}\n{to_yaml(config).rstrip()}"
