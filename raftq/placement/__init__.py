"""Who hosts what: partitions on groups, messages on partitions, replicas on nodes. Pure functions.

Theory of operation. Three choices are made in three different ways, because they change at
different speeds:

- *A message to its partition* (`partitioner`), by every producer alike, from nothing but the key
  and the number of partitions: jump consistent hash. When a queue grows from n to n + 1 partitions,
  1 / (n + 1) of the keys move, all of them to the new partition, so order per key has to be guarded
  for those alone.
- *A partition to its group* (`ring`), once, when the partition is made: consistent hashing with
  virtual nodes and bounded loads. The ring only *proposes*; the mapping stored in the metadata
  group decides from then on. A changed ring moves nothing by itself; it proposes differently for
  about 1 / n of the partitions, and somebody may act on that.
- *A group's replicas to nodes* (`spread`), when the group is made or repaired: over as many racks
  as there are, least loaded nodes first.

Rules:

1. Equal inputs give equal answers on every node and in every process: no set is iterated, no float
   is used, no seed is drawn. Golden vectors in the tests hold the hashes for ever.
2. Nothing here remembers anything between calls that could change an answer.
3. Nothing here knows what is stored, which leader lives where, or how to move anything.

Sources: Karger, Lehman, Leighton, Panigrahy, Levine, Lewin: "Consistent Hashing and Random Trees",
STOC 1997 (the ring; virtual nodes are its copies of a bucket). Mirrokni, Thorup, Zadimoghaddam:
"Consistent Hashing with Bounded Loads", 2016 (no bin above c times the average; an overfull one
passes on to the next on the ring). Lamping, Veach: "A Fast, Minimal Memory, Consistent Hash
Algorithm", 2014 (jump). Thaler, Ravishankar: "Using Name-Based Mappings to Increase Hit Rates",
1998 (highest random weight, which breaks ties between equal nodes).
"""

from raftq.placement.partitioner import partition_for, partition_of_hash
from raftq.placement.ring import Ring
from raftq.placement.spread import Candidate, choose_nodes

__all__ = ["Candidate", "Ring", "choose_nodes", "partition_for", "partition_of_hash"]
