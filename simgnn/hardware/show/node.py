"""A tree of lines of text."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Node:
    """A line of a tree and the lines below it."""

    text: str
    children: list["Node"] = field(default_factory=list)

    def add(self, text: str) -> "Node":
        """Add a line below this one, and return it."""
        child = Node(text)
        self.children.append(child)
        return child


def lines(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Every line of a tree with its depth."""
    yield depth, node.text
    for child in node.children:
        yield from lines(child, depth + 1)
