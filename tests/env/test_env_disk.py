"""The real disk, once with each way of awaiting syncs."""

import asyncio
import errno
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from raftq.env import disk as disk_module
from raftq.env.aio import AioSync, AioUnavailableError
from raftq.env.disk import RealDisk
from raftq.errors import InvalidArgument
from raftq.limits import IOV_MAX, MIB


def aio_works(directory):
    try:
        aio = AioSync()
        aio.probe(str(directory))
        aio.close()
    except AioUnavailableError:
        return False
    return True


@pytest.fixture(params=["threads", "aio"])
def disk(request, tmp_path):
    if request.param == "aio" and not aio_works(tmp_path):
        pytest.skip("Linux AIO does not work on this file system")
    disk = RealDisk(str(tmp_path / "data"), sync_method=request.param)
    assert disk.sync_method == request.param
    yield disk
    disk.unlock()


def descriptors():
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


async def synced(file):
    future = asyncio.get_running_loop().create_future()
    file.sync(future.set_result)
    return await future


def test_chooses_aio_where_it_works_and_threads_elsewhere(tmp_path, monkeypatch):
    disk = RealDisk(str(tmp_path))
    assert disk.sync_method == ("aio" if aio_works(tmp_path) else "threads")
    disk.unlock()

    def locked_down(self):
        raise AioUnavailableError("io_setup: Operation not permitted")

    monkeypatch.setattr(AioSync, "__init__", locked_down)
    disk = RealDisk(str(tmp_path))
    assert disk.sync_method == "threads"
    disk.unlock()


def test_falls_back_when_the_probe_fails(tmp_path, monkeypatch):
    def refuse(self, fd, done):
        raise OSError(errno.EINVAL, "no fsync here")

    monkeypatch.setattr(AioSync, "_submit", refuse)
    disk = RealDisk(str(tmp_path))
    assert disk.sync_method == "threads"
    disk.unlock()


def test_writes_reads_and_sizes(disk):
    file = disk.open("a", create=True)
    file.write(0, [b"one", bytearray(b"two"), memoryview(b"three")])
    file.write(20, [b"far"])
    file.write(3, [])
    assert file.read(0, 11) == b"onetwothree"
    assert file.read(11, 100) == bytes(9) + b"far"
    assert file.read(100, 5) == b""
    assert file.size() == 23
    assert file.path == "a"
    file.close()
    file.close()


def test_more_vectors_than_one_call_takes(disk):
    file = disk.open("a", create=True)
    vectors = [bytes([number % 251]) * (number % 7) for number in range(3 * IOV_MAX + 5)]
    file.write(10, vectors)
    assert file.read(10, 1 << 20) == b"".join(vectors)
    file.close()


def test_a_short_write_is_continued(disk, monkeypatch):
    file = disk.open("a", create=True)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:4]], at))
    one = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: one(fd, bytes(data)[:3], at))
    file.write(2, [b"0123", b"456789", b"ab"])
    assert file.read(2, 100) == b"0123456789ab"
    file.close()


def test_a_write_that_makes_no_progress_is_a_full_disk(disk, monkeypatch):
    file = disk.open("a", create=True)
    monkeypatch.setattr(os, "pwritev", lambda *_: 1)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError) as caught:
        file.write(0, [b"abc"])
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_open_refuses_what_is_missing_and_what_exists(disk):
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    disk.open("a", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open("a", create=True)
    disk.open("a").close()


def test_names_are_sorted_and_directories_nest(disk):
    assert disk.names("group-1") == []
    disk.make_directory("group-1/deep")
    disk.make_directory("group-1/deep")
    for name in ("z", "a", "m"):
        disk.open(f"group-1/{name}", create=True).close()
    assert disk.names("group-1") == ["a", "deep", "m", "z"]
    disk.rename("group-1/z", "group-1/b")
    disk.remove("group-1/a")
    disk.remove("group-1/deep")
    disk.sync_directory("group-1")
    assert disk.names("group-1") == ["b", "m"]


def test_paths_stay_inside(disk):
    for path in ("/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(AssertionError):
            disk.open(path)


def test_a_completion_comes_later_and_at_most_one_is_outstanding(disk):
    async def main():
        file = disk.open("a", create=True)
        file.write(0, [b"x" * 10_000])
        results = []
        file.sync(results.append)
        assert results == []
        with pytest.raises(AssertionError, match="at most one sync"):
            file.sync(results.append)
        other = disk.open("b", create=True)
        async with asyncio.timeout(5):
            while not results:
                await synced(other)
        other.close()
        assert results == [None]
        assert await synced(file) is None
        file.sync_now()
        file.close()

    asyncio.run(main())


def test_a_file_closed_with_a_sync_outstanding_still_completes(disk):
    async def main():
        loop = asyncio.get_running_loop()
        for number in range(50):
            file = disk.open(f"f{number}", create=True)
            file.write(0, [b"x" * 100])
            future = loop.create_future()
            file.sync(future.set_result)
            file.close()
            # The next file must not be given the descriptor that is still being synced.
            other = disk.open(f"g{number}", create=True)
            assert await future is None
            other.write(0, [b"other"])
            assert other.read(0, 5) == b"other"
            other.close()

    before = descriptors()
    asyncio.run(main())
    disk.unlock()
    assert descriptors() <= before


def test_unlock_waits_for_what_is_outstanding_and_delivers_it(disk):
    async def main():
        files = [disk.open(f"f{number}", create=True) for number in range(20)]
        results = []
        for file in files:
            file.write(0, [bytes(100_000)])
            file.sync(results.append)
            file.close()
        disk.unlock()
        assert results == [None] * 20

    asyncio.run(main())


def test_a_failed_sync_is_reported(tmp_path, monkeypatch):
    def failing(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_module, "sync_data", failing)
    disk = RealDisk(str(tmp_path), sync_method="threads")

    async def main():
        file = disk.open("a", create=True)
        error = await synced(file)
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO
        with pytest.raises(OSError):
            file.sync_now()
        file.close()

    asyncio.run(main())
    disk.unlock()


def test_prepare_writes_zeros(disk):
    async def main():
        future = asyncio.get_running_loop().create_future()
        disk.prepare("spare", 9 * MIB + 17, future.set_result, written=True)
        assert await future is None
        file = disk.open("spare")
        assert file.size() == 9 * MIB + 17
        assert file.read(0, 1000) == bytes(1000)
        assert file.read(9 * MIB, 100) == bytes(17)
        file.close()
        # The blocks are written, not holes.
        assert (disk._root / "spare").stat().st_blocks * 512 >= 9 * MIB

    asyncio.run(main())


def test_prepare_reports_failures_and_leaves_nothing(disk, monkeypatch):
    async def prepared(name):
        future = asyncio.get_running_loop().create_future()
        disk.prepare(name, MIB, future.set_result, written=True)
        return await future

    async def main():
        disk.open("there", create=True).close()
        assert isinstance(await prepared("there"), FileExistsError)
        assert disk.names("") == ["there"]

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        error = await prepared("other")
        assert error.errno == errno.ENOSPC
        assert disk.names("") == ["there"]

    asyncio.run(main())


def test_unlock_gives_up_a_long_prepare(disk):
    async def main():
        results = []
        disk.prepare("spare", 512 * MIB, results.append, written=True)
        await asyncio.sleep(0.02)
        begun = time.monotonic()
        disk.unlock()
        assert time.monotonic() - begun < 2
        assert [error.errno for error in results] == [errno.ECANCELED]
        assert disk.names("") == []

    asyncio.run(main())


def test_the_lock_names_its_holder(disk, tmp_path):
    disk.lock()
    other = RealDisk(str(tmp_path / "data"))
    with pytest.raises(InvalidArgument, match=f"in use by process {os.getpid()}"):
        other.lock()
    disk.unlock()
    other.lock()
    other.unlock()


def test_the_lock_holds_between_processes(disk, tmp_path):
    program = (
        "import sys\nfrom raftq.env.disk import RealDisk\n"
        "disk = RealDisk(sys.argv[1])\ndisk.lock()\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(InvalidArgument, match=f"process {child.pid}"):
            disk.lock()
        # A killed process gives the directory back.
        child.kill()
        child.wait()
        disk.lock()


def test_free_bytes(disk):
    assert disk.free_bytes() > 0


def test_many_files_under_stress(disk):
    """Random writes and syncs of many files for a second: each completion comes once, for its file."""

    async def writer(file, seed, until):
        choose = random.Random(seed)
        end = 0
        rounds = 0
        while time.monotonic() < until:
            piece = choose.randbytes(choose.randrange(1, 20_000))
            file.write(end, [piece])
            end += len(piece)
            assert await synced(file) is None
            assert file.read(end - len(piece), len(piece)) == piece
            rounds += 1
        file.close()
        return rounds

    async def main():
        until = time.monotonic() + 1
        files = [disk.open(f"f{number}", create=True) for number in range(24)]
        tasks = [
            asyncio.ensure_future(writer(file, number, until)) for number, file in enumerate(files)
        ]
        return [await task for task in tasks]

    rounds = asyncio.run(main())
    assert min(rounds) > 0
