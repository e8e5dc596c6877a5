"""Where things are: the list in CONTRIBUTING.md names every part of the package, and imports go one way along it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "resnet_tpu"


def test_the_list_names_every_part_once():
    assert sorted(listed_parts()) == sorted(package_parts())


def test_a_module_imports_only_from_above():
    rank = {part: number for number, part in enumerate(listed_parts())}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {imported}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "__main__.py"
        for imported in imported_parts(path)
        if rank[imported] > rank[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
    ]
    assert wrong == []


def listed_parts() -> list[str]:
    """The parts of the package in CONTRIBUTING.md's order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paragraph = text[text.index("**Where things are.**") : text.index("`tests/` mirrors")]
    return re.findall(r"`([a-z_]+)/?`", paragraph)


def package_parts() -> list[str]:
    """The modules and packages of the package."""
    paths = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return [path.stem for path in paths if not path.stem.startswith("__")]


def imported_parts(path: Path) -> Iterator[str]:
    """The parts that the module at `path` imports anywhere, in functions too."""
    known = set(package_parts())
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            part = rest.partition(".")[0]
            if package == "resnet_tpu" and part in known:
                yield part
