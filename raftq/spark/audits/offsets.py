"""Are the offsets of each partition gapless, from the first to what was acknowledged last?

Every batch begins where the one before it ended, on every replica by itself. A missing end leaves
no gap, so the ends are compared with those of the ledger.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "offsets"


def offsets(replicas: DataFrame, batches: DataFrame, ledger: DataFrame | None) -> Answer:
    """Needs of batches: node, group, index, queue, partition, base_offset, count."""
    known = batches.where("base_offset is not null")
    whole = replicas.select("node", "group", (F.col("first_index") == 1).alias("is_whole"))
    in_order = Window.partitionBy("node", "group", "queue", "partition").orderBy(
        "index", "base_offset"
    )
    end_before = F.lag(F.col("base_offset") + F.col("count")).over(in_order)
    # Behind a snapshot a log begins with any offset; one from its beginning begins with 0.
    expected = F.coalesce("end_before", F.when(F.col("is_whole"), F.lit(0)))
    gaps = (
        known.withColumn("end_before", end_before)
        .join(F.broadcast(whole), ["node", "group"], "left")
        .withColumn("expected", expected)
        .where("base_offset != expected")
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
        found = joined(found, _short_ends(known, ledger))
    partitions = F.countDistinct("queue", "partition")
    return Answer(found, summary(known, F.count("*"), partitions=partitions))


def _short_ends(batches: DataFrame, ledger: DataFrame) -> DataFrame:
    end = F.max(F.col("base_offset") + F.col("count"))
    of_log = batches.groupBy("queue", "partition").agg(end.alias("log_end"))
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
