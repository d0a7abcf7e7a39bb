"""Of collectives that nothing tells apart none is taken for standing first in the file: they are refused."""

from typing import Any

import pytest

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import find_problems, parse_profile

Table = dict[str, Any]


def entries(*changes: Table, kind: str = "allreduce") -> list[Table]:
    floor = {"value": "10 us", "source": "assumed"}
    algorithm = "pairwise" if kind == "exchange" else "ring"
    return [{"kind": kind, "algorithm": algorithm, "floor": floor, **change} for change in changes]


def choice(scope: str) -> Table:
    shares = [{"size": "1 MB", "share": "100 %"}]
    return {"scope": scope, "source": "published", "tree_over_ring": "90 %", "shares": shares}


UNDECIDED = {
    "told twice": (
        entries({}, {}),
        "0 and 1 both describe allreduce (scope 'any', ring) of any rank count; expected one",
    ),
    "not an all-reduce": (entries({}, {}, kind="exchange"), "(scope 'any', pairwise) of any rank count; expected one"),
    "the same ranks": (
        entries({}, {"ranks": [2, 4]}, {"ranks": [4, 2]}),
        "1 and 2 both describe allreduce (scope 'any', ring) of 2, 4 ranks; expected one",
    ),
    "a rank count of both": (entries({"ranks": [2, 4]}, {"ranks": [4, 8]}), "of 4 ranks; expected one"),
    "regimes that overlap": (
        entries({"sizes": ["0 B", "2 MB"]}, {"sizes": ["1 MB", "10 MB"]}),
        "of any rank count, sizes from 1 MB to 2 MB; expected one",
    ),
    "a regime besides all sizes": (entries({}, {"sizes": ["1 MB", "3 MB"]}), "sizes from 1 MB to 3 MB; expected one"),
    "algorithms without a choice": (
        entries({}, {"algorithm": "tree"}),
        "(scope 'any', ring and tree) of any rank count; expected one, or a choice for each",
    ),
    "algorithms without a choice where the other scope has its own": (
        entries({"scope": "host"}, {}, {"algorithm": "tree"}),
        "1 and 2 both describe allreduce (scope 'any', ring and tree) of any rank count; expected one, or a choice for",
    ),
    "algorithms of a broadcast": (
        entries({}, {"algorithm": "tree"}, kind="broadcast"),
        "describe broadcast (scope 'any', ring and tree) of any rank count; expected one",
    ),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_nothing_tells_apart_is_refused(name: str, table: Table) -> None:
    told, fault = UNDECIDED[name]
    table["backends"]["nccl"]["collectives"] = told
    profile, problems = find_problems(table)
    assert profile is None
    assert len(problems) == 1
    assert problems[0].startswith("backends.nccl: collectives: ")
    assert fault in problems[0]


def test_two_choices_of_a_scope_are_refused(table: Table) -> None:
    table["backends"]["nccl"]["choices"] = [choice("host"), choice("host")]
    assert find_problems(table) == (None, ["backends.nccl: choices: 2 entries for scope 'host'; expected one"])


@pytest.mark.parametrize(
    ("told", "choices"),
    [
        (entries({"sizes": ["0 B", "1 MB"]}, {"sizes": ["1 MB", "2 MB"]}, {"sizes": ["4 MB", "8 MB"]}), []),
        (entries({}, {"ranks": [2]}, {"ranks": [4]}, {"ranks": [2, 4]}), []),
        (entries({}, {"scope": "host"}, {"scope": "cluster"}), []),
        (entries({}, {"algorithm": "tree"}), ["host", "cluster"]),
        (entries({"scope": "cluster"}, {"scope": "cluster", "algorithm": "tree"}), ["cluster"]),
        (entries({}, {"algorithm": "tree"}, {"scope": "cluster"}), ["host"]),
        (entries({}, {}, {"scope": "host"}, {"scope": "cluster"}), []),
    ],
    ids=[
        "regimes that meet or lie apart",
        "rank counts",
        "scopes",
        "algorithms",
        "algorithms of one scope",
        "algorithms where the other scope has its own",
        "what no group asks for",
    ],
)
def test_what_a_rule_decides_does_not_depend_on_the_order(told: list[Table], choices: list[str], table: Table) -> None:
    described = table["backends"]["nccl"]
    machines = []
    numbered = [{**entry, "floor": {"value": f"{1 + k} us", "source": "assumed"}} for k, entry in enumerate(told)]
    for order in (numbered, numbered[::-1]):
        described["collectives"], described["choices"] = order, [choice(scope) for scope in choices]
        machines.append(Machine.place(parse_profile(table), [0] * 4 + [1] * 4))
    for members in ([0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 4], range(8)):
        if len(members) == 8 or choices != ["cluster"]:  # no all-reduce of a host, with that of a cluster alone
            for nbytes in (1.0, 1e6, 3e6, 9e6):
                one, other = (machine.collective("allreduce", "nccl", nbytes, members) for machine in machines)
                assert one == other
