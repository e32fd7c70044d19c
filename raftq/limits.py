"""Every bound, and why it has this value.

A bound guards memory, time or a format. Those under "Formats" must never change for data that
exists; the rest may be tuned between releases.
"""

KIB = 1024
MIB = 1024 * KIB
SECOND = 1_000_000  # microseconds

# --- Formats -----------------------------------------------------------------------------------

FORMAT_VERSION = 1
"""Version of batch, entry, write unit, segment and snapshot. Each carries its own byte for it."""

MAX_QUEUE_NAME = 80
MAX_KEY_BYTES = 1 * KIB
MAX_HEADERS_BYTES = 64 * KIB
MAX_MESSAGE_BYTES = 16 * MIB
"""Upper end of a queue's max_message_bytes: a batch must fit in a frame with room to spare."""

DEFAULT_MESSAGE_BYTES = 1 * MIB
MAX_BATCH_MESSAGES = 65_536
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES + 128 * KIB
MAX_PARTITIONS = 1_024
"""Of one queue; a receive asks partitions in turn, so this bounds one turn."""

# --- Entries and the log -----------------------------------------------------------------------

MAX_ENTRY_BYTES = MAX_BATCH_BYTES + 64 * KIB
"""One entry always fits one append frame."""

TARGET_ENTRY_BYTES = 1 * MIB
"""A turn stops collecting commands for one entry here: an append this long is one disk write."""

MAX_COMMANDS = 4_096
"""Commands in one entry: bounds one turn of apply."""

MAX_APPEND_BYTES = 1 * MIB
"""Entries in one append message (a single larger entry goes alone)."""

MAX_INFLIGHT_APPENDS = 64
"""Append messages on the way to one follower before the leader waits for answers."""

MAX_INFLIGHT_BYTES = 16 * MIB
"""Bytes on the way to one follower: bounds what the leader's link buffers hold for it."""

IN_LOG_BYTES_MAX = 32 * MIB
"""Proposed by a leader and not applied yet: beyond it no new entry is made. Followers may be slow."""

CACHED_LOG_BYTES = 8 * MIB
"""Recent entries a core keeps in memory for followers; older ones are read from the segments."""

SEGMENT_BYTES_FIRST = 1 * MIB
SEGMENT_BYTES_MAX = 64 * MIB
"""Segments start small (1,000 groups must be cheap) and double up to this."""

UNSYNCED_BYTES_MAX = 8 * MIB
"""Written or queued but not synced, per group; beyond it no new entry is made."""

PENDING_BYTES_MAX = 8 * MIB
"""Proposed and waiting for its entry, per group; beyond it proposers get Busy."""

HOLD_BYTES = 256 * KIB
HOLD_MICROS = 5_000
"""An append waits for the outstanding sync unless this much is pending or this long has passed."""

STALLED_SYNC_MICROS = 20_000
"""While a sync is older than this, writes are queued instead of risking a blocked loop."""

IDLE_MARK_MICROS = 50_000
"""An idle group writes an empty unit this long after its last sync: it marks what was synced."""

IOV_MAX = 1_024
"""Vectors in one writev, by POSIX on Linux."""

SNAPSHOT_EVERY_ENTRIES = 20_000
SNAPSHOT_EVERY_BYTES = 256 * MIB
"""A group snapshots its machine when the log behind the last snapshot is longer than either."""

SNAPSHOT_CHUNK_BYTES = 256 * KIB
SNAPSHOT_MAX_BYTES = 1024 * MIB
SNAPSHOT_KEPT_MICROS = 30 * SECOND
"""A snapshot that another replica was given a piece of is kept so long for it to ask for the next."""

CATCH_UP_PIECE_BYTES = 256 * KIB
"""Entries in one append to a replica that the group can do without: a short read, a short frame."""

CATCH_UP_INFLIGHT_BYTES = 2 * MIB
"""On the way to such a replica: its heartbeats queue behind them on a link that is slower than that."""

CATCH_UP_BURST_BYTES = 1 * MIB
"""What may leave at once for replicas that catch up: it stands in front of the next heartbeat."""

CATCH_UP_FLOOR_BYTES_PER_SECOND = 32 * MIB
CATCH_UP_PERCENT = 150
"""What a busy node gives them: this share of what it applies itself, and not less than the floor."""

CATCH_UP_IDLE_BYTES_PER_SECOND = 512 * MIB

REPAIR_ANSWER_BYTES = 256 * KIB
"""What one replica gives another at once of entries that the other lost."""

PATCH_BYTES_MIN = 1 * MIB
PATCH_BYTES_MAX = 16 * MIB
PATCH_SHARE = 4
"""A repaired range goes to the disk in pieces, each up to a quarter of what was repaired before it:
bounded memory, short writes, and not many files."""

REPAIR_TIMEOUT_MICROS = 1_000_000
REPAIR_PAUSE_MICROS_MIN = 250_000
REPAIR_PAUSE_MICROS_MAX = 30_000_000
"""While nobody can give what is lost here, the others are asked again this often."""

RETENTION_EVERY_MICROS = 300 * SECOND
"""How often a log looks for what may go, if no snapshot makes it look before."""

EXPIRE_EVERY_MICROS = 10 * SECOND
"""How often the partitions that are logs are asked to forget what is too old or too much."""

COMPACTION_BYTES_PER_SECOND = 32 * MIB
"""Packing reads and hashes at this pace at most: a twentieth of what a core can do."""

DISK_PRESSED_BYTES = 256 * MIB
"""Below this much free space history is no reason to keep anything: well before publishes stop."""

SCRUB_EVERY_MICROS = 24 * 3_600 * SECOND
SCRUB_BYTES_PER_SECOND = 16 * MIB
SCRUB_SLICE_BYTES = 256 * KIB
"""Sealed files are read once a day, slowly, so that rot is found while another copy is whole."""

CHECKPOINT_ENTRIES = 10_000
"""Machine digests are taken at multiples of this index, so that replicas can be compared."""

DISK_RESERVE_BYTES = 64 * MIB
"""Below this much free space publishes get StorageFull; acks and deletes go on."""

# --- Time --------------------------------------------------------------------------------------

HEARTBEAT_MICROS = 50_000
ELECTION_MICROS_MIN = 300_000
ELECTION_MICROS_MAX = 600_000

FAST_ELECTION_BASE_MICROS = 5_000
FAST_ELECTION_RANK_MICROS = 30_000
FAST_ELECTION_JITTER_MICROS = 10_000
PREVOTE_GRANTED_PAUSE_MICROS = 50_000
"""Fast failover after a lost link ."""

LOG_TIME_ALARM_MICROS = 10 * SECOND
"""Log time that goes, or is, this much beside the leader's clocks is said: see its alarm."""

DEADLINE_FLOOR_MICROS = 5 * SECOND
"""A new leader postpones a delivery's expiry at most this much, once ."""

# --- Wire --------------------------------------------------------------------------------------

MAX_FRAME_BYTES = MAX_ENTRY_BYTES + 64 * KIB
MAX_FRAME_BYTES_BEFORE_AUTH = 4 * KIB
MAX_CBOR_BYTES = 1 * MIB
"""A control request; nobody has to decode more for a stranger."""

MAX_ANSWER_BYTES = MAX_FRAME_BYTES - 64
"""What an answer may take in its frame, also when it travels on inside another one."""

MAX_CBOR_DEPTH = 16
MAX_STREAMS = 4_096
"""Requests in flight on one connection."""

HANDSHAKE_MICROS = 5 * SECOND
FRAME_MICROS = 30 * SECOND
"""A frame that has begun must end within this time: a slow drip does not hold memory for ever."""

CONNECTION_WRITE_BUFFER_MAX = 32 * MIB
"""A client that does not read what it asked for is closed at this much."""

MAX_CONNECTIONS = 10_000

# --- Queue -------------------------------------------------------------------------------------

PRODUCER_WINDOW = 64
"""Batches a producer may have in flight; the machine remembers at least as many ."""

MAX_PRODUCERS = 100_000
MAX_SESSIONS = 100_000
SESSION_REPLIES = 64
"""Stored replies of one session: as many numbers may be in flight."""

SESSION_EXPIRES_MICROS = 3_600 * SECOND
PRODUCER_EXPIRES_MICROS = 7 * 24 * 3_600 * SECOND
RELEASE_DELAY_MICROS = 1 * SECOND
"""A socket closed without a goodbye gives its deliveries back after this long ."""

VISIBILITY_MICROS_MAX = 24 * 3_600 * SECOND
DELAY_MICROS_MAX = 10 * 365 * 24 * 3_600 * SECOND
MAX_RECEIVE_MESSAGES = 10_000
MAX_RECEIVE_BYTES = 8 * MIB
MAX_ACK_RANGES = 10_000
MAX_DELIVERY_LIMIT = 1_000
MAX_REASON_BYTES = 1 * KIB
MAX_WAIT_MICROS = 3_600 * SECOND
RETENTION_MICROS_MAX = 10 * 365 * 24 * 3_600 * SECOND
"""Upper end of what a queue may be told to keep messages for, settled ones or all."""

AUDIT_BYTES_PER_PARTITION = 1024 * MIB
"""Of what is settled no more than this is kept for audits, however young it is."""

# --- Bootstrap ---------------------------------------------------------------------------------

MAX_NODE_NAME = 64
MAX_NODES = 1_024
