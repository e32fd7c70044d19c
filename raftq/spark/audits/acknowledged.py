"""Where is every message that a client was told is safe?

Each acknowledged message has one of four outcomes:

    present    in the log, in the very entry that was acknowledged (its chain value says so); it may
               lie behind the commit mark, which the newest do when nodes were killed
    released   no longer in the log, by a command in it after the message was settled. The commands
               of this version release nothing, so none is
    missing    nowhere, or not in the entry that was named, or with another body: a broken promise
    phantom    the other way around: in the log, by a producer of the ledger (by anybody, on a queue
               of the ledger, where it names no producers), and not in the ledger

A message whose sender never learned its fate is in the log or not, and in no ledger. So a phantom is
a violation only when the ledger is said to be complete: when all that was sent was acknowledged.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "acknowledged"

_ROW: Final = ("queue", "partition", "index", "row_offset", "row_count")


def acknowledged(batches: DataFrame, ledger: DataFrame, *, is_complete: bool = False) -> Answer:
    """Needs of batches: node, group, queue, partition, index, base_offset, count, producer, chain,
    checksum_ok, digest, run_offset, run_count, run_digest, marked.
    """
    log = _held(batches)
    rows = ledger.withColumnsRenamed(
        {
            "base_offset": "row_offset",
            "count": "row_count",
            "chain": "row_chain",
            "digest": "row_digest",
            "group": "row_group",
        }
    )
    outcomes = _outcomes(rows, log)
    strangers = _strangers(rows, log)
    found = joined(_missing(outcomes), _phantoms(strangers, is_complete=is_complete))
    messages = F.col("row_count")
    present = F.least("covered", "row_count")
    good = F.col("problem").isNull()
    figures = summary(
        outcomes,
        F.sum(messages),
        present=F.sum(F.when(good, present)),
        unmarked=F.sum(F.when(good & ~F.col("is_marked"), messages)),
        released=F.lit(0),
        missing=F.sum(F.when(~good, messages)),
        bodies_compared=F.sum(F.when(good & F.col("is_compared"), messages)),
    )
    return Answer(found, figures)


def _held(batches: DataFrame) -> DataFrame:
    """What any replica holds, once."""
    return (
        batches.where("base_offset is not null and coalesce(checksum_ok, true)")
        .groupBy(
            "group", "queue", "partition", "index", "base_offset", "count", "producer", "chain"
        )
        .agg(
            F.max("marked").alias("marked"),
            *(F.first(name).alias(name) for name in _DIGESTS),
        )
    )


_DIGESTS: Final = ("digest", "run_offset", "run_count", "run_digest")


def _shared() -> Column:
    """How many messages a ledger row and a batch have in common; 0 where there is only one."""
    end = F.least(F.col("row_offset") + F.col("row_count"), F.col("base_offset") + F.col("count"))
    common = F.greatest(end - F.greatest("row_offset", "base_offset"), F.lit(0))
    # Nulls are not the least or the greatest, but ignored.
    both = F.col("row_offset").isNotNull() & F.col("base_offset").isNotNull()
    return F.when(both, common).otherwise(F.lit(0))


def _outcomes(rows: DataFrame, log: DataFrame) -> DataFrame:
    """The ledger's rows, with how much of each is in the log, and what is wrong."""
    is_it = (F.col("chain") == F.col("row_chain")) & (F.col("shared") > 0)
    batch_agrees = _digest_of("base_offset", "count", "digest")
    run_agrees = _digest_of("run_offset", "run_count", "run_digest")
    agrees = F.coalesce(run_agrees, batch_agrees)
    pairs = rows.join(log, ["queue", "partition", "index"], "left").withColumn("shared", _shared())
    judged = pairs.groupBy(*_ROW).agg(
        F.sum(F.when(is_it, F.col("shared")).otherwise(0)).alias("covered"),
        F.sum("shared").alias("elsewhere"),
        F.min(F.when(is_it, F.col("marked"))).alias("is_marked"),
        F.min(F.when(is_it, agrees)).alias("agrees"),
        F.max("group").alias("group"),
        F.max("row_group").alias("row_group"),
    )
    problem = (
        F.when(
            F.col("covered") >= F.col("row_count"),
            F.when(~F.col("agrees"), F.lit("the bodies are not those that were sent")),
        )
        .when(
            F.col("elsewhere") >= F.col("row_count"),
            F.lit("the entry has another chain value than was acknowledged"),
        )
        .otherwise(F.format_string("%d are there", F.col("covered")))
    )
    return judged.withColumn("problem", problem).withColumn(
        "is_compared", F.col("agrees").isNotNull()
    )


def _digest_of(offset: str, count: str, digest: str) -> Column:
    """Whether a digest of the log is the row's; null where it is of another range, or not noted."""
    same_range = (F.col(offset) == F.col("row_offset")) & (F.col(count) == F.col("row_count"))
    return F.when(same_range, F.col(digest) == F.col("row_digest"))


def _missing(outcomes: DataFrame) -> DataFrame:
    lost = outcomes.where("problem is not null").withColumn(
        "group", F.coalesce("group", F.when(F.col("row_group") >= 0, F.col("row_group")))
    )
    detail = F.format_string(
        "missing: %d messages from here on were acknowledged in entry %d: %s",
        F.col("row_count"),
        F.col("index"),
        F.col("problem"),
    )
    return findings(lost.withColumnRenamed("row_offset", "offset"), NAME, detail)


def _strangers(rows: DataFrame, log: DataFrame) -> DataFrame:
    """Batches of the ledger's producers with messages that are in no row."""
    producers = rows.where("producer != 0").select("producer").distinct()
    queues = (
        rows.groupBy("queue").agg(F.max("producer").alias("a"), F.min("producer").alias("b"))
    ).where("a = 0 and b = 0")
    theirs = joined(
        log.join(F.broadcast(producers), "producer", "left_semi").select(log.columns),
        log.join(F.broadcast(queues), "queue", "left_semi").select(log.columns),
    )
    theirs = theirs.drop(*_DIGESTS, "marked").distinct()
    ranges = rows.select("queue", "partition", "index", "row_offset", "row_count")
    pairs = theirs.join(ranges, ["queue", "partition", "index"], "left").withColumn(
        "shared", _shared()
    )
    place = ("group", "queue", "partition", "index", "base_offset", "count", "producer", "chain")
    return (
        pairs.groupBy(*place)
        .agg(F.sum("shared").alias("known"))
        .withColumn("unknown", F.col("count") - F.col("known"))
        .where("unknown > 0")
    )


def _phantoms(strangers: DataFrame, *, is_complete: bool) -> DataFrame:
    if is_complete:
        detail = F.format_string(
            "phantom: %d of %d messages of producer %d in entry %d were never acknowledged",
            F.col("unknown"),
            F.col("count"),
            F.col("producer"),
            F.col("index"),
        )
        return findings(strangers.withColumnRenamed("base_offset", "offset"), NAME, detail)
    by_partition = strangers.groupBy("group", "queue", "partition").agg(
        F.sum("unknown").alias("unknown"), F.min("base_offset").alias("offset")
    )
    detail = F.format_string(
        "%d messages are in the log without being in the ledger, the first here: their sender did "
        "not learn of it, or noted it elsewhere",
        F.col("unknown"),
    )
    return findings(by_partition, NAME, detail, is_note=True)
