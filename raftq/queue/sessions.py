"""Sessions of one group: what makes a client's commands safe to repeat.

Theory of operation. A session's id comes from the place of its opening in the log, so it is never
used twice. Its client numbers its commands; the reply to each is kept while the client still wants
it, and a number that comes again is answered with it. After a reconnect the client attaches, which
raises the attachment: whatever an older connection left behind is refused.

Rules:

1. A number of an unknown session is refused, never executed: nobody knows any more whether it was.
2. Numbers below the lowest wanted are refused for the same reason; numbers far above it, because
   only `SESSION_REPLIES` replies are kept.
3. A session that holds deliveries does not expire: its deliveries do, by their visibility.
"""

from raftq.errors import Busy, RaftqError, SessionExpired
from raftq.ids import Index, SessionId
from raftq.limits import MAX_COMMANDS, SESSION_REPLIES
from raftq.queue.commands import By
from raftq.queue.partition import Partition
from raftq.queue.replies import StoredReply
from raftq.queue.subscription import Subscription


class Session:
    """One client in one group."""

    __slots__ = ("attachment", "check_at", "digest", "held", "id", "replies", "used", "wanted")

    def __init__(self, session: SessionId, used: int, check_at: int) -> None:
        self.id = session
        self.attachment = 0
        self.wanted = 0
        """The lowest number that the client still wants. Invariant: no reply is below it."""
        self.used = used
        self.check_at = check_at
        self.replies: dict[int, tuple[int, StoredReply]] = {}
        """Kind and reply of each command, by number."""
        self.held: dict[int, tuple[Partition, Subscription]] = {}
        """Where its deliveries are; derived, ascending as deliveries are."""
        self.digest = b""

    def want(self, wanted: int) -> None:
        if wanted > self.wanted:
            self.wanted = wanted
            for number in [number for number in self.replies if number < wanted]:
                del self.replies[number]


def session_id(index: Index, position: int) -> SessionId:
    """Ascends with the log, and differs for each command in it."""
    assert 0 <= position < MAX_COMMANDS, "an entry has fewer commands"
    return SessionId(index * MAX_COMMANDS + position)


def unknown_session(session: SessionId) -> SessionExpired:
    return SessionExpired(
        f"session {session} is not known (any more): it was idle for too long, or said goodbye. Whether "
        "its last commands were applied cannot be told; open a new session"
    )


def taken_over(session: Session, attachment: int) -> SessionExpired:
    return SessionExpired(
        f"session {session.id} is at attachment {session.attachment}, not {attachment}: another "
        "connection of this client took it over, or it must attach first"
    )


def out_of_window(session: Session, by: By) -> RaftqError | None:
    """Why this number cannot be taken, if so."""
    if by.number < session.wanted:
        return SessionExpired(
            f"session {by.session} gave up number {by.number} before it arrived: it wants only replies "
            f"from {session.wanted} on"
        )
    if by.number >= session.wanted + SESSION_REPLIES:
        return Busy(
            f"session {by.session} asks number {by.number} while it still wants the reply to "
            f"{session.wanted}: at most {SESSION_REPLIES} are kept",
        )
    return None
