"""One Spark for all tests that need it.

A test marked `spark`, or one that asks for the fixture `spark`, needs no other mark: it gets the
time that a JVM takes to start, and all of them run in one pytest-xdist worker, because every
worker would start a JVM of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftq.spark.java import SparkUnavailableError
from raftq.spark.session import session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # This hook is asked about the tests of all directories.
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session that all tests share: they must not stop it, nor change its settings."""
    try:
        starting = session(app_name="raftq tests", master="local[1]", memory="1g", short_job=True)
        running = starting.__enter__()
    except SparkUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield running
    finally:
        starting.__exit__(None, None, None)
