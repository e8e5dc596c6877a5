"""`resnet-tpu completion`: scripts for completion with the Tab key."""

import sys
from collections.abc import Mapping

from resnet_tpu import __version__
from resnet_tpu.cli.arguments import Argument
from resnet_tpu.cli.command import Command, Given, Verb
from resnet_tpu.cli.menu import Menu
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.fields import Option

_BASH = r"""# What the Tab key completes after resnet-tpu {version}, in bash and zsh.
[[ -n ${{ZSH_VERSION-}} ]] && autoload -U +X bashcompinit && bashcompinit
_resnet_tpu_words() {{  # what may follow a command, or COMMAND __OPTION
    case $1 in
{words}
    esac
}}
_resnet_tpu() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD - 1]}} verb= start= assigned= words=
    [[ $COMP_CWORD -gt 1 ]] && verb=${{COMP_WORDS[1]}}
    case $verb in {parted}) [[ $COMP_CWORD -gt 2 ]] && verb="$verb ${{COMP_WORDS[2]}}" ;; esac
    [[ $verb == "submit "* && " ${{COMP_WORDS[*]:0:$COMP_CWORD}} " == *" -- "* ]] && verb=train
    case $word in  # bash splits --name=value in three, zsh does not
        --*=*) assigned=1 option=${{word%%=*}} start=${{word%%=*}}= word=${{word#*=}} ;;
        =) assigned=1 word= ;;
        *) [[ $option == "=" ]] && assigned=1 option=${{COMP_WORDS[COMP_CWORD - 2]}} ;;
    esac
    [[ $option == --* ]] && words=$(_resnet_tpu_words "$verb ${{option//-/_}}")
    [[ -z $assigned && $words == "true false" ]] && words=  # a switch: what follows need not be its value
    if [[ -z $assigned && -z $words ]]; then
        case $verb in
            ""|{parted}) words=$(_resnet_tpu_words "$verb") ;;
            *) [[ $word == -* ]] && words=$(_resnet_tpu_words "$verb") ;;
        esac
    fi
    COMPREPLY=($(compgen -P "$start" -W "$words" -- "$word"))
}}
complete -o default -F _resnet_tpu resnet-tpu
"""

_FISH = r"""# What the Tab key completes after resnet-tpu {version}, in fish.
function __resnet_tpu_is  # whether these are the first words after the command
    set -l words (commandline -opc)
    set -l last (math 1 + (count $argv))
    test "$argv" = "$words[2..$last]"
end
complete -c resnet-tpu -n 'test (count (commandline -opc)) -eq 1' -f
{lines}
"""


def bash() -> str:
    """The script for bash, which works in zsh too."""
    choices = {"": [*_verbs(), "help", "--help", "--version", "-V"]}
    for verb, options in options_of_verbs().items():
        choices[verb] = [*(f"--{name}" for name in options), "--help", "--help-all"]
        choices |= {f"{verb} __{name}": _values(option) for name, option in options.items()}
    following = _words_after()
    keys: dict[str, list[str]] = {}
    for key, words in {**choices, **following}.items():
        if words:
            keys.setdefault(" ".join(words), []).append(f'"{key}"')
    words = "\n".join(f"        {'|'.join(patterns)}) echo '{words}' ;;" for words, patterns in keys.items())
    return _BASH.format(version=__version__, words=words, parted="|".join(following))


def fish() -> str:
    """The script for fish, with descriptions of verbs and options."""
    lines = [_fish_line("", name, "-a", verb.about) for name, verb in _verbs().items()]
    lines += [_fish_line("", "help", "-a", "How a command is used"), _fish_line("", "help", "-l", "All commands")]
    lines += [_fish_line("", "version", "-s V -l", "The version")]
    for verb, words in _words_after().items():
        lines += [_fish_line(verb, word, "-f -a", about) for word, about in words.items()]
    for verb, options in options_of_verbs().items():
        lines += [
            _fish_line(verb, "help", "-l", "Show the usual options"),
            _fish_line(verb, "help-all", "-l", "Show all options"),
        ]
        for name, option in options.items():
            values = " ".join(_values(option))
            takes = "" if bool in option.kinds else f"-x -a '{values}'" if values else "-r"
            lines.append(_fish_line(verb, name, f"{takes} -l".strip(), option.help))
    return _FISH.format(version=__version__, lines="\n".join(lines))


SHELLS = {"bash": bash, "zsh": bash, "fish": fish}
"""The function that makes the script for each shell."""


@Command(
    "resnet-tpu completion",
    "Install it again after updating resnet-tpu.",
    examples=(
        "resnet-tpu completion bash > ~/.local/share/bash-completion/completions/resnet-tpu",
        "resnet-tpu completion zsh >> ~/.zshrc                  # below the line with compinit",
        "resnet-tpu completion fish > ~/.config/fish/completions/resnet-tpu.fish",
        'eval "$(resnet-tpu completion bash)"                   # for this terminal only',
    ),
    arguments=(Argument("shell", "SHELL", f"One of {', '.join(SHELLS)}.", is_path=False),),
)
def completion(given: Given) -> None:
    """Print the script for bash, zsh or fish that lets the Tab key complete commands, options and values."""
    shell = given.values["shell"]
    if shell not in SHELLS:
        do = f"Name the one in use.{nearest(shell, SHELLS)}"
        raise UserError("SHELL", shell, f"one of {', '.join(SHELLS)}", do)
    sys.stdout.write(SHELLS[shell]())


def _fish_line(verb: str, word: str, how: str, help_text: str) -> str:
    """The line of the fish script that completes `word` after `verb`, with the first sentence of its help."""
    after = f"__resnet_tpu_is {verb}" if verb else "test (count (commandline -opc)) -eq 1"
    about = help_text.partition(". ")[0].replace("\\", "\\\\").replace("'", "\\'")
    return f"complete -c resnet-tpu -n '{after}' {how} {word} -d '{about}'"


def _verbs() -> Mapping[str, Verb | Menu]:
    from resnet_tpu.cli import VERBS

    return VERBS


def _menus() -> dict[str, Menu]:
    """The verbs that are menus of further verbs, such as `bench`."""
    return {name: verb for name, verb in _verbs().items() if isinstance(verb, Menu)}


def _words_after() -> dict[str, dict[str, str]]:
    """The words that may follow some verbs, with descriptions: further verbs, or the names that they accept."""
    from resnet_tpu.recipes import FAMILIES

    after = {name: {part: verb.about for part, verb in menu.verbs.items()} for name, menu in _menus().items()}
    verbs = {name: verb.about for name, verb in _verbs().items()}
    recipes = {name: family.about for family in FAMILIES for name in family.members}
    return {**after, "help": verbs, "recipes": recipes, "completion": {name: f"For {name}" for name in SHELLS}}


def options_of_verbs() -> dict[str, Mapping[str, Option]]:
    """The options of all verbs, such as `train` and `bench input`, by name, including aliases."""
    parts = {f"{name} {part}": verb for name, menu in _menus().items() for part, verb in menu.verbs.items()}
    verbs = {**_verbs(), **parts}
    return {name: verb.command.options for name, verb in verbs.items() if isinstance(verb, Verb)}


def _values(option: Option) -> list[str]:
    """The values that an option can have; none if it takes any text or number."""
    from resnet_tpu.recipes import RECIPES

    if option.name == "recipe":
        return list(RECIPES)
    return ["true", "false"] if bool in option.kinds else list(option.choices)
