"""Are a producer's messages of one key in the order in which it sent them?

Inside a batch they are, for offsets and sequences grow together. So batches are looked at first: one
that lies behind a batch with a later number is a suspicion. It is a violation if both hold a
message of the same key (or messages without a key, which share one lane): that, messages tell. Nothing
is known of batches whose bodies were released: the figure `without_body` counts their messages.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, numbered_summary

NAME: Final = "order"

_LANE: Final = ("node", "group", "queue", "partition", "producer")


def suspicions(batches: DataFrame) -> DataFrame:
    """The producers (by node, group, queue, partition) with a batch behind a later one of theirs.

    Needs of batches: the places, producer, epoch, sequence, base_offset.
    """
    numbered = batches.where("producer != 0 and base_offset is not null")
    return _out_of_order(numbered, _LANE, "base_offset").select(*_LANE).distinct()


def order(batches: DataFrame, suspects: DataFrame, messages: DataFrame | None) -> Answer:
    """Needs of batches: producer, base_offset, count, body_released. `messages` may be None when there
    are no suspects; needs of them: the places, producer, epoch,
    sequence, offset, key_hash.
    """
    total = numbered_summary(batches)
    if messages is None:
        nothing = findings(suspects.where("false"), NAME, F.lit(""))
        return Answer(nothing, total)
    looked_at = messages.join(F.broadcast(suspects), list(_LANE), "left_semi")
    lanes = looked_at.withColumn("key_hash", F.coalesce("key_hash", F.lit(0)))
    wrong = _out_of_order(lanes, (*_LANE, "key_hash"), "offset")
    detail = F.format_string(
        "sequence %d of producer %d, epoch %d, comes behind %d, epoch %d, of the same key",
        F.col("sequence"),
        F.col("producer"),
        F.col("epoch"),
        F.col("latest.sequence"),
        F.col("latest.epoch"),
    )
    return Answer(findings(wrong, NAME, detail), total)


def _out_of_order(rows: DataFrame, lane: tuple[str, ...], place: str) -> DataFrame:
    """Rows whose number is below one that lies before them in their lane."""
    before = Window.partitionBy(*lane).orderBy(place).rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.struct("epoch", "sequence")).over(before)
    is_behind = F.struct("epoch", "sequence") < F.col("latest")
    return rows.withColumn("latest", latest).where(is_behind)
