"""Do all replicas of a group hold the same log?

Equal chain values at an equal index mean equal logs up to there, so one comparison an entry says
it all, as long as the values follow from the bytes: a replica whose entry fails its chain has other
bytes than the rest even if it states the same value. Only entries behind the commit mark may differ:
they are not agreed upon yet.

A replica that is behind is no fault, and is named. That fewer than a majority of the replicas hold
what is committed is one, unless a node was running and wrote on while its files were read. All data
directories of the cluster must have been given to judge that.

Replicas let go of history each by itself, so one may hold what another does not: that is no fault.
They are compared where both hold an entry, whole or with digests in the place of bodies, which come to
the same chain value; and where a log begins, with what the others hold there.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from raftq.spark.audits.answer import Answer, findings, joined, summary

NAME: Final = "replicas"


def replicas(replica_table: DataFrame, entries: DataFrame) -> Answer:
    """Needs of entries: node, group, index, kind, commands, chain, chain_ok, marked."""
    marked = entries.where("marked and chain is not null")
    held = marked.groupBy("group", "index").agg(
        F.min("chain").alias("lowest"),
        F.max("chain").alias("highest"),
        F.max("chain_ok").alias("is_right_somewhere"),
        F.min("chain_ok").alias("is_right_everywhere"),
        F.count("*").alias("copies"),
    )
    # What differs is rare: only that is listed node by node.
    differs = "lowest != highest or (is_right_somewhere and not is_right_everywhere)"
    different = marked.join(F.broadcast(held.where(differs)), ["group", "index"])
    return Answer(
        joined(
            _diverged(different.where("lowest != highest")),
            _other_bytes(different.where("lowest = highest and not chain_ok")),
            _other_beginnings(replica_table, marked),
            _behind(replica_table),
            _absent(replica_table),
            _recovered(entries),
            _on_a_minority(replica_table),
        ),
        summary(held, F.count("*"), copies=F.sum("copies")),
    )


def _diverged(different: DataFrame) -> DataFrame:
    has = F.concat_ws(" has ", "node", F.hex("chain"))
    first = (
        different.groupBy("group", "index")
        .agg(F.array_join(F.sort_array(F.collect_list(has)), ", ").alias("held"))
        .groupBy("group")
        .agg(
            F.min("index").alias("index"),
            F.count("*").alias("entries"),
            F.min_by("held", "index").alias("held"),
        )
    )
    detail = F.format_string(
        "the replicas differ from entry %d on, in %d entries: %s",
        F.col("index"),
        F.col("entries"),
        F.col("held"),
    )
    return findings(first, NAME, detail)


def _other_bytes(different: DataFrame) -> DataFrame:
    first = different.groupBy("node", "group").agg(
        F.min("index").alias("index"), F.count("*").alias("entries")
    )
    detail = F.format_string(
        "%d entries, the first at %d, have other bytes than on the other replicas",
        F.col("entries"),
        F.col("index"),
    )
    return findings(first, NAME, detail)


def _other_beginnings(replica_table: DataFrame, marked: DataFrame) -> DataFrame:
    """Logs whose first entry follows another chain value than other replicas have there."""
    bases = replica_table.where("base_index > 0").select(
        "node", "group", "base_index", "base_chain"
    )
    others = marked.select(
        F.col("group"),
        F.col("index").alias("base_index"),
        F.col("chain"),
        F.col("node").alias("other"),
    )
    different = (
        others.join(F.broadcast(bases), ["group", "base_index"])
        .where("chain != base_chain")
        .groupBy("node", "group", "base_index")
        .agg(F.array_join(F.sort_array(F.collect_list("other")), ", ").alias("others"))
    )
    detail = F.format_string(
        "begins behind entry %d with another chain value than %s has there",
        F.col("base_index"),
        F.col("others"),
    )
    return findings(different, NAME, detail)


def _with_mark(replica_table: DataFrame) -> DataFrame:
    mark = replica_table.groupBy("group").agg(F.max("marked_through").alias("mark"))
    return replica_table.join(F.broadcast(mark), "group")


def _behind(replica_table: DataFrame) -> DataFrame:
    short = _with_mark(replica_table).where("marked_through < mark")
    detail = F.format_string(
        "is behind: holds what was committed up to entry %d of %d",
        F.col("marked_through"),
        F.col("mark"),
    )
    return findings(short, NAME, detail, is_note=True)


def _absent(replica_table: DataFrame) -> DataFrame:
    nodes = replica_table.select("node").distinct()
    groups = replica_table.select("group").distinct()
    absent = nodes.crossJoin(groups).join(
        replica_table.select("node", "group"), ["node", "group"], "left_anti"
    )
    return findings(absent, NAME, F.lit("has no replica of this group"), is_note=True)


def _recovered(entries: DataFrame) -> DataFrame:
    decided = entries.where("kind = 'membership' and commands > 1").select("group", "index")
    detail = F.format_string(
        "the majority was given up behind entry %d, and the group went on from one replica "
        "(raftq cluster recover; raftq log inspect --entries tells more)",
        F.col("index") - 1,
    )
    return findings(decided.distinct(), NAME, detail, is_note=True)


def _on_a_minority(replica_table: DataFrame) -> DataFrame:
    by_group = (
        _with_mark(replica_table)
        .groupBy("group")
        .agg(
            F.max("mark").alias("mark"),
            F.max("running").alias("running"),
            F.sort_array(F.collect_list("marked_through"), asc=False).alias("ends"),
        )
        .withColumn("majority", F.floor(F.size("ends") / 2) + 1)
        .withColumn("held", F.element_at("ends", F.col("majority").cast("int")))
        # Of two replicas or four, one more may exist that was not given.
        .where("held < mark and size(ends) % 2 = 1")
    )
    detail = F.format_string(
        "entries %d to %d are committed, but fewer than %d of %d replicas hold them",
        F.col("held") + 1,
        F.col("mark"),
        F.col("majority"),
        F.size("ends"),
    )
    return joined(
        findings(by_group.where("not running"), NAME, detail),
        findings(by_group.where("running"), NAME, detail, is_note=True),
    )
