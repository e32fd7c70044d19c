"""The queue machine: what a group's log means for the partitions it hosts. Pure.

Theory of operation
-------------------
One `QueueMachine` per group; it holds the group's partitions (each of one queue), and for the whole
group its sessions. It never sees a message body: a publish gives it a stamp (offset range) and a
batch header; state is kept per *range of offsets*, not per message.

A partition has `next_offset`, its producers, and any number of *subscriptions*; one called "default"
exists from the start, and the last one cannot be removed. In a subscription a message is in exactly
one state:

    DELAYED -> READY -> IN_FLIGHT -> SETTLED | DEAD          (or discarded, with a reason)

Invariant, after every command, for every subscription:
    published since its start = delayed + ready + in_flight + settled + dead + discarded

A *delivery* is one handing-out of ranges of one partition to one session: it has an id (unique in
the group, ascending), a visibility deadline on log time, and per range a delivery count. A receipt
names (queue, partition, subscription, delivery, offset); it is stale when that delivery does not
hold that offset any more. Whoever has the receipt may settle it, from any session.

Commands (header; its first byte is the kind; `command_layout` draws the bytes)
-------------------------------------------------------------------------------
     1 PUBLISH         stamp of raftq.batch beside the untouched batch (the only one with a body)
     2 TICK            log time passes: expire, wake delayed, forget sessions and producers
     3 CONFIGURE       a partition opens here, or its configuration changes (idempotent by version)
     4 DROP            a partition closes for ever; refused if not empty unless forced
     5 SUBSCRIBE       a subscription is made: at the earliest, the latest, or an offset
     6 UNSUBSCRIBE     a subscription ends; what it held is nobody's any more
     7 OPEN_SESSION    its id is the place of this command in the log: index * MAX_COMMANDS + position
     8 ATTACH          a reconnected client takes its session over: attachment + 1
     9 RELEASE         (session, attachment) lost its socket: give back what it holds; with a goodbye
                       the session ends
    10 OPEN_PRODUCER   a new epoch on one partition, answers the last sequence; fences the older one
    11 DELIVER         takers in order; apply picks the ranges
    12 ACK             ranges of one delivery each, any number
    13 NACK            the same, with delay, reason, count, reject
    14 EXTEND          the same, with a new visibility: of the whole delivery, and never a shorter one
    15 PURGE           ready and delayed messages are discarded
    16 REDRIVE         dead letters, by offsets or reason, become ready again; or a dry run
    17 PURGE_DEAD      dead letters are discarded
    18 RELEASE_HISTORY all entries up to an index may go; the summary that stays of them
    19 EXPIRE          partitions that are logs forget what lies below an offset

Rules
-----
1.  Commands of a session (5, 6, 11-17) carry (session, attachment, number, lowest number still
    wanted). A number seen before is answered with its stored reply, without being applied again;
    numbers of an unknown or expired session are refused with SessionExpired, never executed; so is
    another attachment than the last. Numbers come in any order within SESSION_REPLIES from the
    lowest wanted; replies are kept while wanted. Operators may send 5, 6 and 15-17 with session 0:
    without memory, so that a repetition is executed again.
2.  A stored receive is given again only for the ranges still held by that session; if none is
    held, the receive runs anew.
3.  `Deliver` names takers; apply picks: redelivered before new, lower offsets first, partitions in
    fair turns; a taker that gets nothing has no delivery, and its number stays unused.
4.  Every handing-out counts in delivery_count. Against delivery_limit count failures: nack (unless
    count=False), expiry, and for a release without goodbye the oldest unsettled message of each
    delivery, and of no other. At the limit the message becomes DEAD: in the same command, with
    reason, last error text and history. A nack with `reject` makes it dead at once.
5.  Acks are judged message by message: what the delivery still holds is settled, the rest is named
    in the reply as stale; a retried ack (same session and number) is a success. A delivery is held
    until a tick expires it, however late that comes.
6.  Apply never refuses an admitted publish. Admission stamps it on the overlay, answers a duplicate
    with the original's offset *after the original's index is applied*, refuses an old epoch
    (ProducerFenced) or a gap (SequenceGap), an unknown partition or producer, and QueueFull. A batch's
    sequence is the number of its first message: the next batch has sequence + count.
7.  max_messages and max_bytes (of bodies, keys and headers) count a message while any subscription
    has it ready, delayed or in flight. Dead letters do not count; redriving them must fit. So must what
    counts again because of a new subscription: dead letters of others, and what a log has kept.
8.  After a leader change the deadline floor holds: every delivery then in flight gets at least
    min(visibility, 5 s, gap) more, and at most once per delivery.
9.  A body is needed while a subscription has its message ready, delayed, in flight or dead; in a log
    (retain="log") also from the floor on, whatever became of it. What nobody needs may vanish, so it
    stays unneeded: for a subscription made later it is discarded from the start ("settled_before"). A
    partition becomes a log with a history that begins then, and a queue again at any time.
10. A release is chained to the one before (index and chain value of both), and says for each partition
    which offsets go, and for each subscription how their messages ended: settled, or discarded for which
    reason. These outcomes are final, so apply works them out again, and refuses a release that is not
    exactly right, lies behind its own entry, or takes what is needed. What is released is kept as totals
    in the subscriptions. Cost: the ranges of discarded messages that go; what was settled is the rest.
11. EXPIRE raises the floor, which never falls: below it what is ready or delayed is discarded
    ("retention"), also what comes back from a delivery and does not die; dead letters stay. Neither
    command has a session: repeating one changes nothing.
12. Log time only; integers only; nothing iterates a set; dicts iterate in insertion order, which is
    the log's order, and survive snapshots in that order.

Files
-----
`machine` joins the rest. What a client asks: `commands`; what the host asks: `retention_commands`; how
it is written and read: `command_layout`, `command_packing`, `command_reader`; what they get: `replies`,
`effects`. State: `state`, `partition`, `subscription`, `producers`, `sessions`, `dead_letters`, of
`spans`, `ranges`, `message_bytes`, `deadlines`. What commands do: `publish`, `deliver`, `settle`,
`session_commands`, `administration`, `passing_time`, `retention`. `admit` is the leader's overlay,
`snapshot` and `drawing` the state as bytes, `queries` what others may ask.
"""
