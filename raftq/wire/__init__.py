"""The binary protocol, sans I/O: bytes in, frames out; requests and replies as plain values.

One port for clients, one for peers, one frame format (little-endian):

    0        4         5      6         8          12
    +--------+---------+------+---------+----------+------------------+
    | length | version | kind | flags   | stream   | body             |
    | u32    | u8 = 1  | u8   | u16 = 0 | u32      | length - 8 bytes |
    +--------+---------+------+---------+----------+------------------+

`length` counts what follows it. `stream` pairs a reply with its request; a client uses each stream
number once at a time. Replies come in any order. Bounds are checked before anything is allocated;
before the handshake is over a frame may have 4 KiB.

Client port (c: client, s: server); the structs are drawn in the module named last
----------------------------------------------------------------------------------
     1 HELLO         c  cbor {magic, versions, features, client, user?}: first (`handshake.py`)
     2 WELCOME       s  cbor {magic, version, features, cluster, node, limits}
     3 ERROR         s  cbor {code, message, outcome, retry_after_us?, failed?, leader?}: answers any
                        request; on stream 0 it is the last word before closing (`errors.py`)
     4 CONTROL       c  cbor {do, ...}: administration and everything cold (`control.py`)
     5 CONTROLLED    s  cbor map
     8 GOODBYE       c  empty: the client leaves on purpose; its deliveries go back at once
     9 PING / 10 PONG   both ways, empty, stream 0
    16 PUBLISH       c  acks, timeout, one batch, untouched; its header names the partition
    17 PUBLISHED     s  group, partition, base offset, count, acks, duplicate, term, index, chain
    18 RECEIVE       c  group-level: group, session, attachment, number, wanted, queue, max messages,
                        max bytes, visibility us, wait us, subscription, partitions (none = all)
    19 DELIVERED     s  deliveries: partition, delivery id, deadline, ranges with delivery counts,
                        then the stored batches they lie in, each once, untouched
    20 SETTLE        c  ack, nack or extend: group, session, attachment, number, wanted, queue,
                        subscription, ranges by delivery, and delay, reason, count, reject (nack) or
                        visibility (extend)
    21 SETTLED       s  the ranges that were stale
    22 READ          c  queue, partition, offset, max bytes, wait us: replay without consuming
    23 BATCHES       s  first and end offset of the log, then stored batches with base offset and
                        log time
    24 READY         s  answers a RECEIVE that said "notify only": something is ready here, come
                        and take it
    25 CANCEL        c  empty, on the stream of a waiting RECEIVE or READ: answer it now

Every request has exactly one reply on its stream, also a cancelled one. (`requests.py`, and
`connection.py` for who may say what when.)

Peer port
---------
    64 PEER_HELLO / 65 PEER_WELCOME    cbor: cluster, node name, incarnation, boot (`handshake.py`)
    66 RAFT             group, then one raft message (`raft_messages.py`)
    67 HEARTBEATS       rows of many groups; 68 HEARTBEAT_REPLIES likewise
    69 FORWARD          a client request that another node leads: u8 kind | u8 hops | u16 0 | body as
                        it came (`forwarding.py`)
    70 FORWARDED        the reply, in the same form
    71 BOOTSTRAP        cbor: prepare, prepared, activate... ; 72 GROUP cbor: created, lost...
     9 PING             empty, stream 0: not answered here; each end speaks in every tick
    73 REPAIR           entries and snapshots for a replica that lost some

Rules
-----
1. Nothing is ever unpickled. CBOR is read with bounds on depth, size and counts; tags, indefinite
   lengths and duplicate keys are refused before decoding.
2. A frame is a value: its body is a slice of the receive chunk. Who keeps a small body beyond the
   turn copies it; a slice would pin the chunk. A chunk is used again only when no slice is left.
3. A protocol error closes the connection, after one ERROR frame where the peer could read it.
4. Names are never used on the data path: ids are, as CONTROL metadata gives them.
"""
