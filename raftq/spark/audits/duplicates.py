"""Is a producer's message in the log twice?

A producer numbers its messages in each partition. Two batches of one epoch whose numbers overlap and
whose offsets differ hold the same message twice: a retry was taken for something new. Batches that
were published without a producer have no numbers, and nothing can be said of them; nor of those whose
bodies were released, for the numbers were in there: the figure `without_body` counts their messages.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, numbered_summary

NAME: Final = "duplicates"


def duplicates(batches: DataFrame) -> Answer:
    """Needs of batches: node, group, queue, partition, base_offset, count, producer, epoch, sequence,
    body_released.
    """
    numbered = batches.where("producer != 0 and base_offset is not null")
    # By node, for replicas that have diverged are another audit's finding.
    before = (
        Window.partitionBy("node", "group", "queue", "partition", "producer", "epoch")
        .orderBy("sequence", "base_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    reach = F.struct((F.col("sequence") + F.col("count")).alias("end"), F.col("base_offset"))
    twice = (
        numbered.withColumn("reach", F.max(reach).over(before))
        .where("sequence < reach.end")
        .withColumnRenamed("base_offset", "offset")
    )
    detail = F.format_string(
        "sequence %d of producer %d, epoch %d, is also in the batch at offset %d",
        F.col("sequence"),
        F.col("producer"),
        F.col("epoch"),
        F.col("reach.base_offset"),
    )
    found = findings(twice, NAME, detail)
    return Answer(found, numbered_summary(batches))
