"""Are the offsets of each partition gapless, from the first to what was acknowledged last?

Every batch begins where the one before it ended, on every replica by itself; one whose body was
released counts by its stamp. A missing end leaves no gap, so the ends are compared with those of the
ledger.

A log from its beginning begins with offset 0. One that begins behind what a command released begins,
in each partition, with the offset that the release names as the lowest one kept, or below it where the
replica has not let go of all that may go. One that began with another replica's snapshot may begin
anywhere.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "offsets"

_PARTITION: Final = ("node", "group", "queue", "partition")


def offsets(
    replicas: DataFrame,
    batches: DataFrame,
    ledger: DataFrame | None,
    bounds: DataFrame | None = None,
) -> Answer:
    """Needs of batches: node, group, index, queue, partition, base_offset, count. `bounds` has a row for
    each partition of groups that have let go of something: `raftq.spark.history.Bound`.
    """
    known = batches.where("base_offset is not null")
    in_order = Window.partitionBy(*_PARTITION).orderBy("index", "base_offset")
    end_before = F.lag(F.col("base_offset") + F.col("count")).over(in_order)
    gaps = (
        _with_first(known.withColumn("end_before", end_before), replicas, bounds)
        .withColumn("expected", F.coalesce("end_before", "first"))
        .where(
            "base_offset != expected and (end_before is not null or base_offset > first or exact)"
        )
        .withColumnRenamed("base_offset", "offset")
    )
    detail = F.when(
        F.col("offset") > F.col("expected"),
        F.format_string("offsets %d to %d are missing", F.col("expected"), F.col("offset") - 1),
    ).otherwise(
        F.format_string(
            "entry %d gives offset %d again; %d was next",
            F.col("index"),
            F.col("offset"),
            F.col("expected"),
        )
    )
    found = findings(gaps, NAME, detail)
    if ledger is not None:
        found = joined(found, _short_ends(known, ledger, bounds))
    partitions = F.countDistinct("queue", "partition")
    return Answer(found, summary(known, F.count("*"), partitions=partitions))


def _with_first(batches: DataFrame, replicas: DataFrame, bounds: DataFrame | None) -> DataFrame:
    """With the offset that the partition's first batch has: exactly, or at most; null: unknown."""
    bases = F.broadcast(replicas.select("node", "group", "base_index"))
    based = batches.join(bases, ["node", "group"], "left")
    is_whole = F.col("base_index") == 0
    if bounds is None:
        first, exact = F.when(is_whole, F.lit(0)), is_whole
    else:
        places = ("group", "queue", "partition", "released_index", "released")
        based = based.join(F.broadcast(bounds.select(*places)), list(_PARTITION[1:]), "left")
        is_released = F.col("base_index") <= F.col("released_index")
        first = F.when(is_whole, F.lit(0)).when(is_released, F.col("released"))
        exact = is_whole | (F.col("base_index") == F.col("released_index"))
    return based.withColumn("first", first).withColumn("exact", exact)


def _short_ends(batches: DataFrame, ledger: DataFrame, bounds: DataFrame | None) -> DataFrame:
    end = F.max(F.col("base_offset") + F.col("count"))
    of_log = batches.groupBy("queue", "partition").agg(end.alias("log_end"))
    if bounds is not None:
        # Where all of a partition is released the log does not name it any more.
        released = bounds.select("queue", "partition", F.col("released").alias("log_end"))
        of_log = (
            joined(of_log, released)
            .groupBy("queue", "partition")
            .agg(F.max("log_end").alias("log_end"))
        )
    of_ledger = ledger.groupBy("queue", "partition").agg(end.alias("ledger_end"))
    short = of_ledger.join(of_log, ["queue", "partition"], "left").where(
        "ledger_end > coalesce(log_end, 0)"
    )
    detail = F.format_string(
        "acknowledged up to offset %d, but the log ends before %d",
        F.col("ledger_end") - 1,
        F.coalesce("log_end", F.lit(0)),
    )
    return findings(short.withColumn("offset", F.coalesce("log_end", F.lit(0))), NAME, detail)
