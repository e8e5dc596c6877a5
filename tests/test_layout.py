"""The list in CONTRIBUTING.md names every part of the package, and imports follow it in one direction only."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "resnet_tpu"


def test_the_list_names_every_part_once():
    listed = listed_parts()
    assert len(set(listed)) == len(listed)
    assert {part for part in listed if "/" not in part} == set(top_parts())
    assert [part for part in listed if not (PACKAGE / part).is_dir() and not (PACKAGE / f"{part}.py").exists()] == []


def test_a_module_imports_only_from_above():
    rank = {part: number for number, part in enumerate(listed_parts())}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {imported}"
        for path in PACKAGE.rglob("*.py")
        if path not in (PACKAGE / "__main__.py", PACKAGE / "__init__.py")
        for imported in imported_modules(path)
        if rank[part_of(imported)] > rank[part_of(str(path.relative_to(PACKAGE).with_suffix("")))]
    ]
    assert wrong == []


@functools.cache
def listed_parts() -> list[str]:
    """The parts of the package in CONTRIBUTING.md's order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paragraph = text[text.index("**Where things are.**") : text.index("`tests/` mirrors")]
    return re.findall(r"`([a-z_/]+?)/?`", paragraph)


def top_parts() -> list[str]:
    """The modules and packages directly in the package."""
    paths = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return [path.stem for path in paths if not path.stem.startswith("__")]


def part_of(module: str) -> str:
    """The innermost listed part that a module, such as "data/loader/order", belongs to."""
    return max((part for part in listed_parts() if f"{module}/".startswith(f"{part}/")), key=len)


def imported_modules(path: Path) -> Iterator[str]:
    """The package's modules, such as "data/split", that the file at `path` imports anywhere, functions included."""
    known = set(top_parts())
    statements: list[ast.AST] = [ast.parse(path.read_text())]
    while statements:
        node = statements.pop()
        # No expression imports, and most of a module is expressions.
        statements += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, _, module = name.replace(".", "/").partition("/")
            if package == "resnet_tpu" and module.partition("/")[0] in known:
                yield module
