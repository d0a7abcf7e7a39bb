"""Faults between fields of experiments with mini-batches."""

from collections.abc import Iterator, Mapping
from typing import Any

from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.policies.batching.neighbours import NeighbourSampling
from simgnn.policies.communication.store import Pulls
from simgnn.policies.placement.store import Store
from simgnn.policies.schedule.prefetch import Prefetch
from simgnn.policy import chosen

Faults = Iterator[tuple[tuple[str, ...], str]]
"""Key path, message."""


def fanout_faults(values: Mapping[str, Any]) -> Faults:
    """Fan-outs are one a layer."""
    batching, model = values["batching"], values["model"]
    if isinstance(batching, NeighbourSampling) and model is not None and len(batching.fanouts) != model.layers:
        yield (
            ("batching", "fanouts"),
            f"got {len(batching.fanouts)} fan-outs {list(batching.fanouts)}, expected {model.layers}: one for each "
            f"layer (model.layers = {model.layers}), the first for the neighbours of the seed vertices",
        )


def slot_faults(values: Mapping[str, Any]) -> Faults:
    """Stores and windows are for mini-batches, hot rows for those that are known ahead."""
    batching, placement, schedule = values["batching"], values["placement"], values["schedule"]
    if batching is None:
        return
    sampled = isinstance(batching, NeighbourSampling)
    got = f"with batching.kind = '{batching.kind}'"
    for slot, policy, default, why, serves in (
        ("placement", placement, "device", "a full graph's rows all lie on their ranks' devices, so none are pulled",
         not isinstance(placement, Store)),
        ("schedule", schedule, "bsp", "an epoch of one step leaves no batch to stage ahead",
         schedule is None or schedule.full_graph),
    ):  # fmt: skip
        if not serves and not sampled:
            yield (
                (slot, "kind"),
                f"got '{policy.kind}' {got}, expected '{default}': {why}; or sample mini-batches (batching.kind = "
                "'seeded' or 'sampled')",
            )
    if sampled and schedule is not None and schedule.mini_batches is None:
        yield (
            ("schedule", "kind"),
            f"got '{schedule.label}' {got}, expected 'bsp' or 'prefetch': the other serves the full graph alone",
        )
    if sampled and batching.asks_hosts and isinstance(schedule, Prefetch) and schedule.lanes > 1:
        yield (
            ("schedule", "lanes"),
            f"got {schedule.lanes} with batching.structure = 'partitioned', expected 1: hosts draw one batch of every "
            "rank together; or let each rank draw alone (batching.structure = 'replicated')",
        )
    if sampled and isinstance(schedule, Prefetch) and schedule.staged == "blocks" and schedule.across_epochs:
        yield (
            ("schedule", "across_epochs"),
            "got true with schedule.staged = 'blocks', expected false: blocks are drawn across epochs in any case, and "
            "no rows are staged before the step before has ended; remove it, or stage rows (schedule.staged = 'rows')",
        )
    if sampled and not batching.known_ahead and isinstance(placement, Store) and placement.hot_rows:
        yield (
            ("placement", "hot_rows"),
            f"got {placement.hot_rows} {got}, expected 0: hot rows are counted in batches that are known before "
            "training begins (batching.kind = 'seeded')",
        )


def training_faults(values: Mapping[str, Any]) -> Faults:
    """What training on mini-batches needs of the other slots, and what serves nothing else."""
    batching, communication = values["batching"], values["communication"]
    if batching is None or communication is None:
        return
    got = f"with batching.kind = '{batching.kind}'"
    train = values["train"]
    if not isinstance(batching, NeighbourSampling):
        if train is not None and chosen(train, ["gradient_mean"]):
            yield (
                ("train", "gradient_mean"),
                f"got '{train.gradient_mean}' {got}, expected 'seeds': the loss of a full graph is the mean over its "
                "training vertices; remove it, or sample mini-batches (batching.kind = 'seeded' or 'sampled')",
            )
        if isinstance(communication, Pulls):
            yield (
                ("communication", "kind"),
                f"got 'store' {got}, expected one that exchanges rows in every layer ('halo'): a store's rows are "
                "pulled by mini-batches (batching.kind = 'seeded' or 'sampled')",
            )
        return
    for slot, expected, why in (
        ("communication", "store", "batches pull input rows, and nothing else of a layer travels"),
        ("placement", "store", "rows are pulled from the hosts that keep them"),
        ("freshness", "always", "input rows never change"),
        ("codec", "none", "rows of the store travel as they are in this version"),
    ):
        policy = values[slot]
        if policy is not None and policy.kind != expected:
            yield (slot, "kind"), f"got '{policy.kind}' {got}, expected '{expected}': {why}"
    model = values["model"]
    if train is not None and batching.evaluation == "none" and train.eval_every and chosen(train, ["eval_every"]):
        yield (
            ("train", "eval_every"),
            f"got {train.eval_every} with batching.evaluation = 'none', expected 0: nothing is evaluated; remove it, "
            "or evaluate (batching.evaluation = 'exact')",
        )
    if model is not None and model.kind not in BUILT_IN_LAYERS:
        yield (
            ("model", "kind"),
            f"got '{model.kind}' {got}, expected one of {', '.join(BUILT_IN_LAYERS)}: a layer of your own sums over "
            "neighbourhoods of the graph, mini-batches have sampled ones; use batching.kind = 'full'",
        )
    if not isinstance(communication, Pulls) or (communication.rows == "scheduled" and batching.known_ahead):
        return
    placement = values["placement"]
    for key, default in (("pull", "full"), ("hot_scope", "epoch")):
        if isinstance(placement, Store) and chosen(placement, [key]):
            yield (
                ("placement", key),
                f"got '{getattr(placement, key)}' {got} and communication.rows = '{communication.rows}', expected "
                f"'{default}': no rank has a cache to fill; remove it, or plan caches (batching.kind = 'seeded', "
                "communication.rows = 'scheduled')",
            )
    if communication.rows == "scheduled":
        yield (
            ("communication", "rows"),
            f"got 'scheduled' {got}, expected 'requested': owners know ahead only of batches that are drawn before "
            "training begins (batching.kind = 'seeded')",
        )
    elif isinstance(placement, Store) and placement.hot_rows and batching.known_ahead:
        yield (
            ("placement", "hot_rows"),
            f"got {placement.hot_rows} with communication.rows = 'requested', expected 0: caches are filled by a plan; "
            "use communication.rows = 'scheduled'",
        )


def embedding_faults(values: Mapping[str, Any]) -> Faults:
    """Vectors that are learned change after every step: rows that were copied before are not theirs."""
    batching, placement, schedule = values["batching"], values["placement"], values["schedule"]
    communication = values["communication"]
    if not isinstance(batching, NeighbourSampling) or not isinstance(placement, Store):
        return
    got = f"with placement.sparse_embedding = {placement.sparse_embedding}"
    if not placement.sparse_embedding:
        if chosen(placement, ["sparse_delay"]):
            yield (
                ("placement", "sparse_delay"),
                f"got {placement.sparse_delay} {got}, expected 0: no vectors are learned; remove it, or learn some "
                "(placement.sparse_embedding = WIDTH)",
            )
        return
    planned = isinstance(communication, Pulls) and communication.rows == "scheduled" and batching.known_ahead
    if placement.hot_rows and planned:  # where none can be cached, that is told
        yield (
            ("placement", "hot_rows"),
            f"got {placement.hot_rows} {got}, expected 0: the vectors change in every step, a row that is kept for an "
            "epoch does not (--set placement.hot_rows=0)",
        )
    if isinstance(schedule, Prefetch) and schedule.staged == "rows":
        yield (
            ("schedule", "staged"),
            f"got 'rows' {got}, expected 'blocks': the vectors change in every step, so that rows are brought when the "
            "step before has ended (--set schedule.staged=blocks)",
        )
