"""Structured logs over the standard library's loggers.

Rule: an event is a fixed phrase, everything that varies is a key; payload bytes are never logged.
"""

import logging
import sys

import structlog
from structlog.typing import FilteringBoundLogger

_PROCESSORS: tuple[structlog.typing.Processor, ...] = (
    structlog.stdlib.filter_by_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def logger(name: str) -> FilteringBoundLogger:
    """A logger whose records carry keys; silent until somebody handles ``raftq`` records."""
    bound: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[*_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return bound


def configure(*, level: str = "INFO", json: bool = False) -> None:
    """Send raftq's records to standard error: for programs of raftq's own, never for libraries."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    root = logging.getLogger("raftq")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
