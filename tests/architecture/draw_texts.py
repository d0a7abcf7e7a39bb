"""Draw docstrings and error messages at random, for a reader who judges whether a stranger understands each.

python -m tests.architecture.draw_texts --seed 22 --docstrings 60 --messages 30
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, with the name of what it describes."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, f"[{getattr(node, 'name', 'module')}] {text}"


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each message of an exception that is raised, names of variables in braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = node.exc.args[0]
            if isinstance(text, ast.JoinedStr | ast.Constant | ast.BinOp):
                yield node.lineno, ast.unparse(text)


def main() -> None:
    """Print the texts that a seed draws; the order of files and lines decides which, so a checkout repeats them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--docstrings", type=int, default=60)
    parser.add_argument("--messages", type=int, default=30)
    given = parser.parse_args()
    found: dict[str, list[str]] = {"docstrings": [], "messages": []}
    for path in sorted(path for package in ("simgnn", "executor") for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, texts in (("docstrings", docstrings(tree)), ("messages", messages(tree))):
            found[name] += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in texts]
    for name, texts in found.items():
        draw = random.Random(given.seed)
        print(f"== {name}: {len(texts)}")
        print("\n\n".join(draw.sample(texts, getattr(given, name))))


if __name__ == "__main__":
    main()
