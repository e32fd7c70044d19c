"""Was all that is gone settled, and released by a command?

A log lets go of two things. Its beginning, up to an entry that the command `RELEASE` names: the command
has then been applied, and the machine says so for ever. And bodies of batches, each replica by itself:
the machine says that all their messages are settled. What was let go of without that is a violation, and
so is a log from which no machine can be made that could say it. Each replica whose history does not begin
at its beginning, or that has let go of bodies, is named in a note.

No query either: a machine is asked (`raftq.spark.history`).
"""

from raftq.spark.history import History
from raftq.spark.report import Finding


def released(history: History) -> tuple[list[Finding], int, dict[str, int]]:
    """Findings, how many messages have no body (on all replicas together), and figures."""
    figures = {
        "replicas": len(history.beginnings),
        "entries_released": sum(
            each.first_index - 1 for each in history.beginnings if each.is_released
        ),
    }
    return history.findings, history.checked, figures
