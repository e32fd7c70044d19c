"""Where is every message that a client was told is safe?

Each acknowledged message has one of four outcomes:

    present    in the log, in the very entry that was acknowledged (its chain value says so); it may
               lie behind the commit mark, which the newest do when nodes were killed
    released   settled, and its body gone: either its batch is in the very entry that was acknowledged,
               proved by its chain value, with a digest in the place of its body; or the entry is held
               nowhere, and the machine says that it was released by a command, the message settled
    missing    nowhere, or not in the entry that was named, or with another body: a broken promise
    phantom    the other way around: in the log, by a producer of the ledger (by anybody, on a queue
               of the ledger, where it names no producers), and not in the ledger

The ledger has a digest of the bodies, the log one of the whole batch: these cannot be compared. But the
chain value that was acknowledged covers the batch, so a batch that was released is what was sent.

A message whose sender never learned its fate is in the log or not, and in no ledger. So a phantom is
a violation only when the ledger is said to be complete: when all that was sent was acknowledged.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "acknowledged"

_ROW: Final = ("queue", "partition", "index", "row_chain", "row_offset", "row_count")


class LetGo(NamedTuple):
    """What tells which entries are gone, and that they were released."""

    bounds: DataFrame
    """One row a partition: `raftq.spark.history.Bound`."""
    entries: DataFrame
    """What is held; needed of it: group, index, chain."""


def acknowledged(
    batches: DataFrame,
    ledger: DataFrame,
    let_go: LetGo | None = None,
    *,
    is_complete: bool = False,
) -> Answer:
    """Needs of batches: node, group, queue, partition, index, base_offset, count, producer, chain,
    chain_ok, checksum_ok, body_released, digest, run_offset, run_count, run_digest, marked. Without
    `let_go` no entry is known to be released.
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
    outcomes = _outcomes(_with_release(rows, let_go), log)
    queues = _queues_without_producers(rows)
    found = joined(
        _missing(outcomes),
        _phantoms(_strangers(rows, _theirs(rows, log, queues)), is_complete=is_complete),
        _nameless(_strangers(rows, _without_producer(rows, log, queues))),
    )
    messages = F.col("row_count")
    present = F.least("covered", "row_count")
    good = F.col("problem").isNull()
    figures = summary(
        outcomes,
        F.sum(messages),
        present=F.sum(F.when(good, present)),
        unmarked=F.sum(F.when(good & ~F.col("is_marked"), messages)),
        released=F.sum(F.when(good, messages - present)),
        missing=F.sum(F.when(~good, messages)),
        bodies_compared=F.sum(F.when(good & F.col("is_compared"), messages)),
    )
    return Answer(found, figures)


def _held(batches: DataFrame) -> DataFrame:
    """What any replica holds, once; with its body if any has it."""
    # Without its body a batch is known by its entry alone: that must be proved.
    is_sound = F.when(F.col("body_released"), F.col("chain_ok")).otherwise(F.col("checksum_ok"))
    run = F.max_by(F.struct(*_RUN), "run_count").alias("run")
    held = (
        batches.where("base_offset is not null")
        .where(F.coalesce(is_sound, ~F.col("body_released")))
        .groupBy(*_BATCH)
        .agg(
            F.max("producer").alias("producer"),
            F.max("marked").alias("marked"),
            F.min("body_released").alias("body_released"),
            F.first("digest", ignorenulls=True).alias("digest"),
            run,
        )
    )
    return held.select("*", *(F.col(f"run.{name}").alias(name) for name in _RUN)).drop("run")


_BATCH: Final = ("group", "queue", "partition", "index", "base_offset", "count", "chain")
_RUN: Final = ("run_offset", "run_count", "run_digest")


def _with_release(rows: DataFrame, let_go: LetGo | None) -> DataFrame:
    """The ledger's rows, with whether their entry is held nowhere and was released, all settled."""
    if let_go is None:
        return rows.withColumn("is_released", F.expr("false"))
    bounds = let_go.bounds.dropDuplicates(["queue", "partition"]).select(
        "queue", "partition", "released_index", "released", F.col("group").alias("known_group")
    )
    held = (
        let_go.entries.where("chain is not null")
        .select(F.col("group").alias("known_group"), "index", F.expr("true").alias("is_held"))
        .distinct()
    )
    is_released = (
        (F.col("index") <= F.col("released_index"))
        & (F.col("row_offset") + F.col("row_count") <= F.col("released"))
        & ((F.col("row_group") < 0) | (F.col("row_group") == F.col("known_group")))
        & F.col("is_held").isNull()
    )
    return (
        rows.join(F.broadcast(bounds), ["queue", "partition"], "left")
        .join(held, ["known_group", "index"], "left")
        .withColumn("is_released", F.coalesce(is_released, F.expr("false")))
        .select(*rows.columns, "is_released")
    )


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
    has_body = is_it & ~F.col("body_released")
    judged = pairs.groupBy(*_ROW).agg(
        F.sum(F.when(has_body, F.col("shared")).otherwise(0)).alias("covered"),
        F.sum(F.when(is_it, F.col("shared")).otherwise(0)).alias("known"),
        F.max("is_released").alias("is_released"),
        F.sum("shared").alias("elsewhere"),
        F.min(F.when(is_it, F.col("marked"))).alias("is_marked"),
        F.min(F.when(is_it, agrees)).alias("agrees"),
        F.max("group").alias("group"),
        F.max("row_group").alias("row_group"),
    )
    problem = (
        F.when(
            F.col("known") >= F.col("row_count"),
            F.when(~F.col("agrees"), F.lit("the bodies are not those that were sent")),
        )
        .when(F.col("is_released"), F.lit(None))
        .when(
            F.col("elsewhere") >= F.col("row_count"),
            F.lit("the entry has another chain value than was acknowledged"),
        )
        .otherwise(F.format_string("%d are there", F.col("known")))
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


def _queues_without_producers(rows: DataFrame) -> DataFrame:
    by_queue = rows.groupBy("queue").agg(
        F.max("producer").alias("highest"), F.min("producer").alias("lowest")
    )
    return by_queue.where("highest = 0 and lowest = 0").select("queue")


def _theirs(rows: DataFrame, log: DataFrame, queues: DataFrame) -> DataFrame:
    """Batches of the ledger's producers, and of anybody on the queues where it names none."""
    producers = rows.where("producer != 0").select("producer").distinct()
    return joined(
        log.join(F.broadcast(producers), "producer", "left_semi").select(log.columns),
        log.join(F.broadcast(queues), "queue", "left_semi").select(log.columns),
    )


def _without_producer(rows: DataFrame, log: DataFrame, queues: DataFrame) -> DataFrame:
    """Batches on the ledger's other queues of which nobody can say any more whose they are."""
    others = rows.select("queue").distinct().join(queues, "queue", "left_anti")
    nameless = log.where("body_released and producer is null")
    return nameless.join(F.broadcast(others), "queue", "left_semi").select(log.columns)


def _strangers(rows: DataFrame, theirs: DataFrame) -> DataFrame:
    """Those of the batches with messages that are in no row."""
    theirs = theirs.select(*_BATCH, "producer").distinct()
    ranges = rows.select("queue", "partition", "index", "row_offset", "row_count")
    pairs = theirs.join(ranges, ["queue", "partition", "index"], "left").withColumn(
        "shared", _shared()
    )
    return (
        pairs.groupBy(*_BATCH, "producer")
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
    return _counted(
        strangers,
        "%d messages are in the log without being in the ledger, the first here: their sender did "
        "not learn of it, or noted it elsewhere",
    )


def _nameless(strangers: DataFrame) -> DataFrame:
    return _counted(
        strangers,
        "%d messages whose bodies were released are in no row of the ledger, the first here: it is not "
        "known any more who sent them",
    )


def _counted(strangers: DataFrame, text: str) -> DataFrame:
    """One note a partition."""
    by_partition = strangers.groupBy("group", "queue", "partition").agg(
        F.sum("unknown").alias("unknown"), F.min("base_offset").alias("offset")
    )
    return findings(by_partition, NAME, F.format_string(text, F.col("unknown")), is_note=True)
