"""The bytes of the headers of all commands.

All little-endian. Every header begins with its kind and the format version. PUBLISH is the stamp of
`raftq.batch`; it alone has a body. Commands of a session then name it:

    0      1         2        4         8          16           20         24       32
    +------+---------+--------+---------+----------+------------+----------+--------+--------+
    | kind | version | names  | count   | session  | attachment | reserved | number | wanted |
    | u8   | u8      | u16    | u32     | u64      | u32        | u32      | u64    | u64    |
    +------+---------+--------+---------+----------+------------+----------+--------+--------+

    ACK          | count items | names
    NACK         | delay i64 | flags u8 (1 counts, 2 reject) | zero | reason length u16 | items | names | reason
    EXTEND       | visibility i64 | items | names
      an item:   queue u32 | partition u32 | name u32 | delivery u64 | start u64 | stop u64
    SUBSCRIBE    | queue u32 | partition u32 | from u8 (0 earliest, 1 latest, 2 offset) | offset u64 | names
    UNSUBSCRIBE, PURGE, PURGE_DEAD  | queue u32 | partition u32 | names
    REDRIVE      | queue u32 | partition u32 | flags u8 (1 dry run) | limit u32 | names | ranges
      the first name is the subscription, the second, if any, the reason; a range: start u64 | stop u64

    DELIVER      kind, version, names u16, count u32 | takers | partitions u32... | names
      a taker:   session u64 | attachment u32 | name u32 | number u64 | wanted u64 | queue u32
                 | messages u32 | bytes u64 | visibility i64 | partitions u32

`names` are texts, each with its length in one byte in front; items refer to them from 1 on, 0 is
"default". The short ones:

    TICK           kind, version, six zeros        OPEN_SESSION  the same
    CONFIGURE      kind, version, sealed u8, zero | queue u32 | partition u32 | config version u64 | map
      the map is one flat JSON object: configurations are rare, and read by people
    DROP           kind, version, force u8, zero | queue u32 | partition u32
    ATTACH         kind, version, two zeros | attachment u32 | session u64 | last delivery seen u64
    RELEASE        kind, version, goodbye u8, zero | attachment u32 | session u64
    OPEN_PRODUCER  kind, version, two zeros | queue u32 | partition u32 | epoch u32 | producer u64 | opener u64
    EXPIRE         kind, version, two zeros | count u32 | bounds
      a bound:     queue u32 | partition u32 | offset u64

The one that stays as the summary of what is gone:

    RELEASE_HISTORY  kind, version, names u16, count u32 | after u64 | chain there (16 bytes)
                     | through u64 | chain there (16 bytes) | ranges | outcomes | names
      a range:       queue u32 | partition u32 | before u64 | offset u64 | outcomes u32
      an outcome:    subscription (a name) u32 | outcome (a name) u32 | messages u64
      the outcomes are those of the first range, then those of the second, and so on
"""

from struct import Struct
from typing import Final

TICK: Final = 2
CONFIGURE: Final = 3
DROP: Final = 4
SUBSCRIBE: Final = 5
UNSUBSCRIBE: Final = 6
OPEN_SESSION: Final = 7
ATTACH: Final = 8
RELEASE: Final = 9
OPEN_PRODUCER: Final = 10
DELIVER: Final = 11
ACK: Final = 12
NACK: Final = 13
EXTEND: Final = 14
PURGE: Final = 15
REDRIVE: Final = 16
PURGE_DEAD: Final = 17
RELEASE_HISTORY: Final = 18
EXPIRE: Final = 19

SHORT_STRUCT: Final = Struct("<BB6x")
BY_STRUCT: Final = Struct("<BBHIQI4xQQ")
ITEM_STRUCT: Final = Struct("<IIIQQQ")
NACK_STRUCT: Final = Struct("<qBxH")
EXTEND_STRUCT: Final = Struct("<q")
SUBSCRIBE_STRUCT: Final = Struct("<IIBQ")
WHERE_STRUCT: Final = Struct("<II")
REDRIVE_STRUCT: Final = Struct("<IIBI")
RANGE_STRUCT: Final = Struct("<QQ")
DELIVER_STRUCT: Final = Struct("<BBHI")
TAKER_STRUCT: Final = Struct("<QIIQQIIQqI")
CONFIGURE_STRUCT: Final = Struct("<BBBxIIQ")
DROP_STRUCT: Final = Struct("<BBBxII")
ATTACH_STRUCT: Final = Struct("<BB2xIQQ")
RELEASE_STRUCT: Final = Struct("<BBBxIQ")
OPEN_PRODUCER_STRUCT: Final = Struct("<BB2xIIIQQ")
RELEASE_HISTORY_STRUCT: Final = Struct("<BBHIQ16sQ16s")
RELEASED_STRUCT: Final = Struct("<IIQQI")
OUTCOME_STRUCT: Final = Struct("<IIQ")
EXPIRE_STRUCT: Final = Struct("<BB2xI")
BOUND_STRUCT: Final = Struct("<IIQ")
