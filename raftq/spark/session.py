"""One Spark session in this process, from nothing to nothing left behind.

Theory of operation: pyspark starts a Java process (the JVM) by a chain of shell scripts that are
steered by environment variables, and talks to it over a socket. `session` sets those variables,
starts the JVM with a scratch directory for everything it writes, and puts the environment back as
soon as it runs. At the end it stops Spark, then the JVM, waits for it, and removes the scratch
directory. If this process dies instead, the JVM sees its standard input closed and ends itself.

Rules:

1. One session at a time in a process, and not beside a Spark that somebody else started: memory
   and Java options count only when the JVM starts, so they would silently be ignored.
2. With a local master nothing of the environment leaks in: a Spark of another version, a cluster's
   configuration or another Python would break it in ways that are hard to read. With any other
   master the environment is the user's, and is only filled in.
3. Nothing is written outside the scratch directory and the cache of `java.py`; nothing is printed
   but errors, on stderr.
"""

import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raftq.spark.java import SparkUnavailableError, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkQueryError(RuntimeError):
    """A query failed and nobody inside the session's block caught it; the message is Spark's."""


_LOOPBACK: Final = "127.0.0.1"

_EXIT_TIMEOUT_SECONDS: Final = 30.0
"""A JVM told to end does so within a second or two; after this long it is killed."""

_SHORT_JOB_SETTINGS: Final = {
    # To compile a query, or to plan it anew while it runs, costs more than a small query itself.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

_FOREIGN_VARIABLES: Final = (
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_ENV_LOADED",
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
    "SPARK_LOCAL_REMOTE",
    "SPARK_REMOTE",
    "SPARK_SUBMIT_OPTS",
    "SPARK_TESTING",
)
"""What would make pyspark start another Spark, reach for a remote one, or write elsewhere."""


@contextmanager
def session(
    *,
    app_name: str,
    master: str = "local[*]",
    memory: str = "2g",
    shuffle_partitions: int | None = None,
    short_job: bool = False,
    quiet: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Iterator["SparkSession"]:
    """A Spark session that is gone, with its JVM, when the block ends.

    `memory` is the driver's, which with a local master is all there is. `shuffle_partitions` is
    the number of cores of a local master, unless given. `short_job` starts faster and computes
    slower: for small data and tests. `quiet` logs errors only. `settings` are Spark's own and win
    over everything else; Java options are added to.

    Raises SparkUnavailableError when pyspark or a Java is missing. An exception of Spark that
    leaves the block becomes a SparkQueryError.
    """
    pyspark_session_class = _pyspark_session_class()
    java = find_java()
    interrupt_handler = signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryDirectory(prefix="raftq-spark-", ignore_cleanup_errors=True) as created:
        scratch = Path(created).resolve()
        _prepare(scratch)
        configuration = _configuration(
            master=master,
            memory=memory,
            scratch=scratch,
            shuffle_partitions=shuffle_partitions,
            short_job=short_job,
        )
        _merge(configuration, settings or {})
        variables = _variables(java_home=java.path, master=master, quiet=quiet, scratch=scratch)
        try:
            with _environment(variables):
                builder = pyspark_session_class.builder.appName(app_name)
                spark = builder.config(map=configuration).getOrCreate()
            with _silence(quiet=quiet), _printable_errors():
                yield spark
        finally:
            _stop()
            _undo_changes_of_pyspark(interrupt_handler, scratch)


def _pyspark_session_class() -> Any:
    """The SparkSession of pyspark, once it is sure that a JVM of our own can be started."""
    try:
        # It takes a while to import and comes with an extra.
        import pandas  # noqa: F401, ICN001, PLC0415
        import pyarrow  # noqa: F401, ICN001, PLC0415
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise missing_package(error) from error
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no other way to know.
        raise RuntimeError("Spark already runs in this process; use that session, or stop it first")
    return SparkSession


def missing_package(error: ImportError) -> SparkUnavailableError:
    """What to say when a package of the extra is not there."""
    return SparkUnavailableError(
        f"Spark needs the package {error.name}: `pip install 'raftq[spark]'`"
    )


def _prepare(scratch: Path) -> None:
    for name in ("configuration", "local", "temporary", "warehouse"):
        (scratch / name).mkdir()
    # Copied because Spark wants a directory, and the package may not be one.
    logging = files("raftq.spark").joinpath("log4j2.properties").read_bytes()
    (scratch / "configuration" / "log4j2.properties").write_bytes(logging)


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    """How many tasks a local master runs at a time: local, local[N], local[*], local[N,retries]."""
    wanted = master.removeprefix("local").strip("[]").partition(",")[0].strip()
    if wanted == "*":
        return len(os.sched_getaffinity(0))
    return int(wanted) if wanted else 1


def _configuration(
    *,
    master: str,
    memory: str,
    scratch: Path,
    shuffle_partitions: int | None,
    short_job: bool,
) -> dict[str, str]:
    # Without performance data there is no file of it in /tmp to leave behind after a crash.
    java_options = [f"-Djava.io.tmpdir={shlex.quote(str(scratch / 'temporary'))}"]
    java_options.append("-XX:-UsePerfData")
    if short_job:
        # The optimizing compiler and a parallel collector cost more than they give in seconds.
        java_options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    configuration = {
        **(_SHORT_JOB_SETTINGS if short_job else {}),
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _is_local(master):
        shuffle_partitions = shuffle_partitions or _cores(master)
        configuration |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        }
    if shuffle_partitions is not None:
        configuration["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    return configuration


def _merge(configuration: dict[str, str], settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if name == "spark.driver.extraJavaOptions":
            configuration[name] += f" {value}"
        else:
            configuration[name] = value


def _variables(
    *, java_home: Path, master: str, quiet: bool, scratch: Path
) -> dict[str, str | None]:
    """The environment of the JVM, where it differs from ours; None takes a variable away."""
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path(),
    }
    if quiet:
        variables["SPARK_CONF_DIR"] = str(scratch / "configuration")
    if _is_local(master):
        return variables | dict.fromkeys(_FOREIGN_VARIABLES) | {"SPARK_LOCAL_IP": _LOOPBACK}
    given = {name: value for name in variables if (value := os.environ.get(name))}
    # Java and the way to raftq are not for the user's cluster but for the driver in this process.
    return variables | given | {name: variables[name] for name in ("JAVA_HOME", "PYTHONPATH")}


def python_path() -> str | None:
    """PYTHONPATH with which Spark's Python workers find the raftq that runs here.

    They import it by name. From a checkout, this process may know it only by its own sys.path.
    """
    given = os.environ.get("PYTHONPATH")
    home = str(Path(str(files("raftq.spark"))).parent.parent)
    # In front of the standard library, a directory of packages would hide parts of it.
    if home in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return given
    return os.pathsep.join(filter(None, [home, given]))


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _silence(*, quiet: bool) -> Iterator[None]:
    """Keeps pyspark from printing, as a line of JSON, each exception that it raises as well."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before = logger.disabled
    logger.disabled = before or quiet
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Exceptions of Spark ask the JVM for their text, and could not be printed when it is gone."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415

    try:
        yield
    except (CapturedException, Py4JJavaError) as error:
        kind = type(error).__name__
        try:
            text = f"{kind}: {error}"
        except Exception:
            text = f"{kind}, and the JVM ended before it told more"
        # Without its cause, which would be printed too; with the lines that led to it.
        raise SparkQueryError(text).with_traceback(error.__traceback__) from None


def _stop() -> None:
    """Stops Spark and its JVM, in whatever state a failed start or a dead JVM left them."""
    # pyspark stops Spark but leaves its JVM running until this process ends, for a next session.
    # It has no public way to end the JVM and forget it, so its class attributes are used.
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession, SQLContext  # noqa: PLC0415

    context = SparkContext._active_spark_context  # noqa: SLF001
    gateway = SparkContext._gateway  # noqa: SLF001
    try:
        if context is not None:
            context.stop()
        if gateway is not None:
            gateway.shutdown()
    except Exception:  # noqa: S110
        pass  # The JVM is gone or does not answer; it is ended below in either case.
    if gateway is not None:
        _end(gateway.proc)
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
    SQLContext._instantiatedContext = None  # noqa: SLF001


def _end(jvm: "subprocess.Popen[bytes]") -> None:
    """Ends the JVM by closing its standard input, for which it waits; kills it if that fails."""
    assert jvm.stdin is not None, "pyspark starts its JVM with a pipe"
    try:
        jvm.stdin.close()
        jvm.wait(timeout=_EXIT_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        jvm.kill()
        jvm.wait()


def _undo_changes_of_pyspark(interrupt_handler: Any, scratch: Path) -> None:
    # pyspark's handler of Ctrl-C would talk to the JVM that is gone. One that was not installed
    # from Python cannot be put back from it.
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and interrupt_handler is not None:
        signal.signal(signal.SIGINT, interrupt_handler)
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(scratch))]
