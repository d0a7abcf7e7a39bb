"""The structure of the code: no circles of imports, small folders, and a reason beside each late import."""

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("simgnn", "executor")
MOST_MODULES = 18
"""Modules of one folder, ``__init__`` apart."""


@cache
def sources() -> dict[str, tuple[Path, str, ast.Module]]:
    """Path, text and syntax tree of each module, by its name."""
    found = {}
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        found[name] = (path, text, ast.parse(text))
    return found


def blocks(node: ast.AST, late: bool = False) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Lists of statements in a node, at any depth, and whether each lies inside a function."""
    late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        if isinstance(inner, list):  # an expression has a body that is none
            yield inner, late
            for statement in inner:
                yield from blocks(statement, late)


def imported(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    """Our own modules that a module imports anywhere: at its top, in functions, and for types."""
    for node in chain.from_iterable(block for block, _ in blocks(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known or node.module in known:
                    yield full if full in known else node.module


def first_circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of a graph of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def late_imports(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Groups of imports inside functions: statements that follow each other."""
    for block, late in blocks(tree):
        if late:
            runs = groupby(block, lambda statement: isinstance(statement, ast.Import | ast.ImportFrom))
            yield from (list(run) for are_imports, run in runs if are_imports)


def unexplained(text: str, tree: ast.Module) -> list[int]:
    """Lines of groups of late imports with a comment neither above them nor on one of their lines."""
    lines = text.splitlines()
    return [
        group[0].lineno
        for group in late_imports(tree)
        if not lines[group[0].lineno - 2].strip().startswith("#")
        and not any("#" in line for line in lines[group[0].lineno - 1 : group[-1].end_lineno])
    ]


def test_modules_import_each_other_in_no_circle() -> None:
    known = sources()
    graph = {name: set(imported(tree, known)) - {name} for name, (_, _, tree) in known.items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert first_circle(graph) == []


def test_a_circle_is_found() -> None:
    assert set(first_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def test_folders_are_small() -> None:
    modules = Counter(path.parent for path, _, _ in sources().values() if path.stem != "__init__")
    assert {str(folder.relative_to(ROOT)): n for folder, n in modules.items() if n > MOST_MODULES} == {}


def test_imports_inside_functions_state_their_reason() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text, tree in sources().values()
        for line in unexplained(text, tree)
    ]
    assert found == []


def test_an_unexplained_import_is_found() -> None:
    text = (
        "def f():\n    import a\n    b = 1\n    # heavy\n    import c\n    import d\n"
        "    try:\n        import e\n    except ImportError:\n        import f  # small\n"
    )
    assert unexplained(text, ast.parse(text)) == [2, 8]
