"""What an audit gives: findings, and one row of what it looked at."""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it.

FINDING_COLUMNS: Final = (
    "audit",
    "is_note",
    "node",
    "group",
    "queue",
    "partition",
    "offset",
    "detail",
)
_PLACES: Final = {
    "node": "string",
    "group": "bigint",
    "queue": "bigint",
    "partition": "bigint",
    "offset": "bigint",
}


class Answer(NamedTuple):
    """`findings` has `FINDING_COLUMNS`; `summary` is one row: `checked` and a map of `figures`."""

    findings: DataFrame
    summary: DataFrame


def findings(rows: DataFrame, audit: str, detail: Column, *, is_note: bool = False) -> DataFrame:
    """One finding a row; a place that the rows do not name is null."""
    places = [
        (F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name)
        for name, kind in _PLACES.items()
    ]
    head = [F.lit(audit).alias("audit"), F.lit(is_note).alias("is_note")]
    return rows.select(*head, *places, detail.alias("detail"))


def summary(rows: DataFrame, checked: Column, **figures: Column) -> DataFrame:
    """One row; `checked` and the figures are aggregates over `rows`."""
    pairs: list[Column] = []
    for name, column in figures.items():
        pairs += [F.lit(name), F.coalesce(column, F.lit(0)).cast("bigint")]
    figure_map = F.create_map(*pairs) if pairs else F.expr("map()")
    return rows.agg(
        F.coalesce(checked, F.lit(0)).cast("bigint").alias("checked"),
        figure_map.cast("map<string,bigint>").alias("figures"),
    )


def numbered_summary(batches: DataFrame) -> DataFrame:
    """One row: batches that have a producer's numbers, their messages, and those without a body."""
    is_numbered = F.col("producer") != 0
    return summary(
        batches.where("base_offset is not null"),
        F.count(F.when(is_numbered, 1)),
        messages=F.sum(F.when(is_numbered, F.col("count"))),
        without_body=F.sum(F.when(F.col("body_released"), F.col("count"))),
    )


def joined(first: DataFrame, *others: DataFrame) -> DataFrame:
    """All findings of several looks."""
    for other in others:
        first = first.unionByName(other)
    return first
