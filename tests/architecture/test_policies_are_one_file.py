"""A policy says everything about itself in one file: nothing else names its class, its kind or its methods.

The test reads the syntax tree of every module.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from simgnn.experiment.slots import SLOTS
from simgnn.policy import Policy
from simgnn.registry import shipped

ROOT = Path(__file__).resolve().parents[2]
REGISTRIES = ("simgnn/registry.py", "simgnn/experiment/slots.py", "executor/policies/")
"""Where a policy may be named: what finds it, and what makes a function of it faster or measures it."""
SHIPPED = [policy for slot in SLOTS for policy in shipped(slot).values()]
CLASSES = {(policy.__module__, policy.__name__) for policy in SHIPPED}
BASES = {base.__name__ for policy in SHIPPED for base in policy.__mro__ if issubclass(base, Policy)}
"""Names of the classes of policies and of what they derive from."""
KINDS = {kind for slot in SLOTS for kind in shipped(slot)}
POLICIES = {*SLOTS, "policy"}
"""Names of variables and attributes that hold a policy."""
CUT_TEXT = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition"}
NAMED = {"name", "decision", "buffer", "point", "op_name", "route", "reverses", "module"}
"""Variables and attributes that hold the name of an op, a buffer or a decision, in the rooms that have these."""
ROOMS = (
    "simgnn/program", "simgnn/emit", "simgnn/policies", "simgnn/planner", "simgnn/experiment/planning", "simgnn/sim",
    "simgnn/analysis", "simgnn/record", "simgnn/report", "executor",
)  # fmt: skip
OTHER_NAMES = ("executor/energy/", "executor/state/model.py", "executor/testbed/")
"""Files whose names are of other things: counters, parameters of modules, network devices."""
FILES = {"path", "file", "folder", "entry", "root", "made"}
"""Variables whose attribute ``name`` is that of a file."""


def test_nothing_outside_its_file_knows_a_policy() -> None:
    found = {f"{path}: {offence}" for path, tree in modules() for offence in offences(path, tree)}
    assert sorted(found) == [], "these know what only the policy's own file may know"


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in ("simgnn", "executor"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def offences(path: str, tree: ast.Module) -> Iterator[str]:
    """What a module says that only a policy may say of itself."""
    own = path.removesuffix(".py").replace("/", ".")
    named = path.startswith(ROOMS) and not path.startswith(OTHER_NAMES)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not path.startswith(REGISTRIES):
            yield from (
                f"names {alias.name}"
                for alias in node.names
                if (node.module, alias.name) in CLASSES and node.module != own
            )
        elif isinstance(node, ast.Compare):
            yield from (f"compares a kind with '{kind}'" for kind in compared_kinds(node))
            yield from (f"looks into {ast.unparse(each)}" for each in searched(node) if named and is_name(each))
        elif isinstance(node, ast.Call):
            if asks_for_a_class(node) or names_a_method(node):
                yield f"calls {ast.unparse(node)}"
            if named and cuts_a_name(node):
                yield f"cuts {ast.unparse(node.func)}"
        elif isinstance(node, ast.Subscript):
            if named and isinstance(node.slice, ast.Slice) and is_name(node.value):
                yield f"slices {ast.unparse(node.value)}"
        elif isinstance(node, ast.Constant) and node.value == "face":
            yield "names a face"


def compared_kinds(node: ast.Compare) -> Iterator[str]:
    """Kinds of policies that a ``.kind`` or ``.label`` is compared with, or looked for among."""
    sides = [node.left, *node.comparators]
    if any(isinstance(side, ast.Attribute) and side.attr in ("kind", "label") for side in sides):
        for side in sides:
            for inner in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
                if isinstance(inner, ast.Constant) and inner.value in KINDS:
                    yield str(inner.value)


def searched(node: ast.Compare) -> Iterator[ast.expr]:
    """What text is looked for in."""
    for operator, side in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield side


def asks_for_a_class(node: ast.Call) -> bool:
    """Whether a call tests the class of a policy, be it that of a slot."""
    if not isinstance(node.func, ast.Name) or node.func.id != "isinstance":
        return False
    asked, wanted = node.args
    classes = [inner for inner in ast.walk(wanted) if isinstance(inner, ast.Name | ast.Attribute)]
    # ``nn.Linear`` is a layer of torch, not the codec
    return last_word(asked) in POLICIES or any(
        last_word(inner) in BASES and not ast.unparse(inner).startswith("nn.") for inner in classes
    )


def names_a_method(node: ast.Call) -> bool:
    """Whether a call fetches something of a policy by a string."""
    return (
        isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and last_word(node.args[0]) in POLICIES
    )


def cuts_a_name(node: ast.Call) -> bool:
    """Whether a call takes the name of an op, a buffer or a decision apart, or matches it."""
    if not isinstance(node.func, ast.Attribute):
        return False
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
        return any(is_name(argument) for argument in node.args)
    return node.func.attr in CUT_TEXT and is_name(node.func.value)


def is_name(node: ast.expr) -> bool:
    """Whether an expression is the name of an op, a buffer or a decision."""
    if isinstance(node, ast.BoolOp):
        return any(is_name(value) for value in node.values)
    if isinstance(node, ast.Attribute) and last_word(node.value) in FILES:
        return False
    return isinstance(node, ast.Attribute | ast.Name) and last_word(node) in NAMED


def last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
