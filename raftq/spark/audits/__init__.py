"""The audits: each asks one question of a cluster's files, and answers with what it found.

    integrity.py     is every byte what was written, and every entry linked to the one before?
    offsets.py       are the offsets of each partition gapless, up to what was acknowledged?
    replicas.py      do all replicas hold the same log?
    acknowledged.py  where is every message that a client was told is safe?
    duplicates.py    is a producer's message there twice?
    order.py         are a producer's messages of a key in the order in which it sent them?
    machine.py       do the machines of all replicas come to the same state?

Rules:

1. An audit is a function from tables to an `Answer`: no files, no session, no options of Spark. It
   runs on the data source, on Parquet and on made-up rows alike. (`machine` alone replays.)
2. It works on headers. Messages are looked at only where headers have raised a suspicion.
3. A *finding* is a violation, or a note: something that is worth a sentence and no fault, like a
   replica that is behind. The verdict counts violations alone.
4. Every finding says where: node, group, queue, partition, offset, as far as they make sense.
"""
