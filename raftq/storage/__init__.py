"""The durable segment log of one group, its snapshots, and its recovery.

Theory of operation
-------------------
A `GroupLog` is the durable half of one replica. It takes the core's `Write`s in order, makes each a
*write unit* in the newest segment, asks for one sync at a time, and reports the highest write seq
whose promise is kept. It is also the core's `LogReader`, and it finds stored batches by partition
and offset. One directory per group:

    group-<id>/replica                  who this replica is (small file; the host's)
    group-<id>/segment-<sequence>.log   write units, append-only
    group-<id>/segment-<sequence>.index positions of entries and batches of a sealed segment;
                                        rebuildable, verified, never trusted blindly
    group-<id>/snapshot-<index>         machine snapshots
    group-<id>/patch-<first>-<last>.log entries written anew: lost to damage and fetched from a peer,
                                        or kept without the bodies that nobody needs
    group-<id>/horizon                  what the log has let go of (small file)
    group-<id>/members                  the first membership
    group-<id>/spare-<sequence>.log     a prepared next segment: written zeros, renamed at first use
                                        (that may be lost: a valid header makes it a segment)
    group-<id>/*.tmp                    unfinished; dropped at start

Two hashes
----------
The *physical* checksum of a unit (xxh3-64) is seeded with replica incarnation and segment sequence:
recycled or foreign bytes never verify. The *chain* (xxh3-128, `raftq.raft.entry`) covers the
replicated part only: replicas are identical when chains are equal at an equal index; their files
need not be.

Rules
-----
1.  One write unit per write, valid whole or not at all. Its header carries its number (units are
    counted, marks too, so a mark is told from the write before it), write_seq, the checksum of the
    unit before it, boot id, `synced_through` (the highest number whose sync had returned when it
    was made), commit (index, chain), and, as they are after the unit, term, vote, last index, last
    term, last chain. One sync covers entries, term and vote.
2.  Append-only. A conflict is a Truncate in a unit, a snapshot install a Reset, never an overwrite.
3.  A completion covers one file. The first unit of a new segment is written only after the old
    segment's last sync has returned. At most one sync is outstanding per group; it covers what was
    written before it was asked for, nothing else.
4.  A write follows an outstanding sync only while that is younger than 20 ms; else it is queued.
    Unsynced plus queued bytes are bounded: `is_busy`.
5.  An idle group writes an empty unit 50 ms after its last sync, and at close, so that what was
    acknowledged is marked as synced and the final commit mark is on disk.
6.  A failed sync or write of an accepted unit is never retried: `on_failure`, the node stops.
    Running out of space while preparing is refused early (`is_full`), with a reserve for acks.
7.  Recovery, in ten steps: (1) list; temporaries are not looked at. (2) follow `continues` from the
    newest segment back. (3) walk units by number and previous checksum, scanning on past invalid
    bytes and into later segments; M = highest `synced_through` of any valid unit header, or number
    in a segment header. (4) nothing missing at or below M: torn, the log ends there (`tail_cut`),
    but with valid units of the same boot behind it: amnesiac (a killed process tears only the end);
    something missing at or below M: damage, interior if the next whole unit bounds it, else
    amnesiac. (5) replay entries, Truncate (below the commit mark = damage), Reset. (6) term, vote,
    log end, chain from the last kept header, compared with the recomputed. (7) choose the snapshot:
    one beyond the log, or with another chain at its index than the log has, wins. (8) rewrite what
    lies after M into a new segment: temporary name, `continues = (segment, position)`, sync,
    rename, sync directory; then drop what is unfinished. (9) only then may the replica vote,
    acknowledge, report a last index. (10) commit = max(snapshot, mark), the mark only where its
    chain equals.
8.  Nothing is appended to a segment that was open at a crash. Sequences never repeat, those of
    temporary and spare files included. A spare's name is durable when it is prepared; its renaming
    need not be. A segment's header and first unit are one write and share one sync. A newest file
    without a valid header is judged by rule 7 (4) like any break: after a lawful power loss its
    second unit may be there and its first not. Amnesia is written into every later segment.
9.  Damage never deletes anything, and while something is lost nothing is removed. What is given out is proved: entries by chain, batches by checksum.
10. What is lost inside is a *hole*: named, never served, never skipped over. It is filled by patches
    (`patch.py`) whose entries join the chain on both sides, at start or while the log runs. Rot is
    looked for by every read and by the scrub (`scrub.py`); what does not verify becomes a hole.

11. What nobody needs goes, and nothing else (`compaction.py`): entries that a command in the log
    released, bodies that are settled. Never above the older of two snapshots, so nothing that may have
    to be applied again; first the patches are durable, then the horizon, then a file is removed.

System assumptions: a sector write is not atomic, unsynced writes reach the platter in any order and
in any part, rename is atomic, a name is durable after its directory's sync, a sync that returned
success is kept, bytes may rot at any time.
"""
