"""The trace: a row an op, the same columns from both backends. ``compare`` joins on (rank, epoch, step, op_id)."""

import pyarrow as pa

TRACE_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int32()),  # -1: evaluation after the epoch
        pa.field("op_id", pa.int32()),  # Program.op_ids
        pa.field("issued_s", pa.float64()),  # the stream reached the op and its inputs were ready
        pa.field("started_s", pa.float64()),  # work began; of a collective: the latest issue of its group
        pa.field("ended_s", pa.float64()),
        pa.field("bytes_sent", pa.int64()),  # payload of exchange, fetch and peer_read that left this rank
        pa.field("collective_bytes", pa.int64()),  # payload handed to broadcast, allreduce, allgather
        pa.field("control_bytes", pa.int64()),  # masks, counts, flags
        pa.field("messages", pa.int32()),  # peers with a non-empty payload
    ]
)
"""Seconds count from the start of the run's first training turn, on one clock aligned over ranks."""

OPS_SCHEMA = pa.schema(
    [
        pa.field("op_id", pa.int32()),
        pa.field("template", pa.string()),
        pa.field("op", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("stream", pa.string()),
        pa.field("layer", pa.int32()),
        pa.field("phase", pa.string()),
        pa.field("category", pa.string()),
    ]
)
"""``ops.parquet``: what an op_id means."""

TRAFFIC_SCHEMA = pa.schema(
    [
        pa.field("op_id", pa.int32()),
        pa.field("source", pa.int32()),
        pa.field("target", pa.int32()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""``traffic.parquet``: payload of pairwise ops by rank pair, summed over the run's turns."""

MEMORY_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("time_s", pa.float64()),
        pa.field("device_bytes", pa.int64()),
        pa.field("host_bytes", pa.int64()),
    ]
)
"""``memory.parquet`` of a prediction: what a rank holds on its device and in its host's memory, from each change on."""
