"""`resnet-tpu recipes`."""

import textwrap

from resnet_tpu import __version__
from resnet_tpu.cli.arguments import Argument, Command, Given, entries
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
    """A sentence on each recipe; recipes of one function, which differ in size, are grouped."""
    from resnet_tpu.recipes import RECIPES, text_of

    families: dict[str, list[str]] = {}
    for name in RECIPES:
        families.setdefault(text_of(name), []).append(name)
    single = {names[0]: _first_sentence(text) for text, names in families.items() if not names[1:]}
    lines = [entries(single)]
    for text, names in families.items():
        if names[1:]:
            listed = textwrap.fill(", ".join(names), 106, break_on_hyphens=False)
            lines += ["", textwrap.fill(_first_sentence(text), 110), textwrap.indent(listed, "  ")]
    return "\n".join([*lines, "", "resnet-tpu recipes NAME prints one."])


def _one(name: str) -> str:
    """The options of one recipe as a file, headed by its description."""
    from resnet_tpu.recipes import find_recipe, text_of

    config = find_recipe(name)
    about = textwrap.fill(f"{name}, resnet-tpu {__version__}. {text_of(name)}", 108)
    return f"{textwrap.indent(about, '# ')}\n{to_yaml(config).rstrip()}"


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].rstrip('.')}."
