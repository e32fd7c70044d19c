"""Is every byte what was written, and every entry linked to the one before it?

Three hashes are recomputed: the units' (by the walk that plans the read: its problems stand in the
table of replicas), the chain's, over every entry, across the borders of units and segments, and the
batches' own, which their producers made. What a walk lost leaves a hole in the indexes.

A body that was released has no checksum any more. Its digest stands in its entry, and the entry's chain
value proves that digest: so a link that is missing or wrong is found there as anywhere.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "integrity"


def integrity(replicas: DataFrame, entries: DataFrame, batches: DataFrame) -> Answer:
    """Needs of entries: node, group, index, chain_ok, bodies_released, error; of batches: also queue, partition,
    base_offset, checksum_ok.
    """
    damage = findings(
        replicas.select("node", "group", F.explode("problems").alias("problem")),
        NAME,
        F.concat(F.lit("damaged: "), F.col("problem")),
    )
    broken = findings(
        entries.where("chain_ok = false or error is not null"),
        NAME,
        F.format_string(
            "entry %d: %s",
            F.col("index"),
            F.coalesce(F.col("error"), F.lit("its chain value does not follow from its bytes")),
        ),
    )
    bad = batches.where("checksum_ok = false or error is not null")
    corrupt = findings(
        bad.withColumnRenamed("base_offset", "offset"),
        NAME,
        F.format_string(
            "entry %d: %s",
            F.col("index"),
            F.coalesce(F.col("error"), F.lit("a batch fails its checksum")),
        ),
    )
    found = joined(damage, _holes(replicas, entries), broken, corrupt)
    return Answer(found, summary(entries, F.count("*"), bodies_released=F.sum("bodies_released")))


def _holes(replicas: DataFrame, entries: DataFrame) -> DataFrame:
    """Indexes without an entry, between the first and the last that the replica should have."""
    borders = [
        replicas.select("node", "group", index.alias("index"))
        for index in (F.col("first_index") - 1, F.col("last_index") + 1)
    ]
    indexes = joined(entries.select("node", "group", "index"), *borders)
    before = F.lag("index").over(Window.partitionBy("node", "group").orderBy("index"))
    holes = indexes.withColumn("before", before).where("index > before + 1")
    detail = F.format_string(
        "entries %d to %d are missing", F.col("before") + 1, F.col("index") - 1
    )
    return findings(holes, NAME, detail)
