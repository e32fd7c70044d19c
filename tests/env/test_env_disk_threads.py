"""The disk's threads and the AIO context by themselves: order, batching, failures, bugs in callbacks."""

import asyncio
import errno
import os
import pathlib
import threading
import time

import pytest

from raftq.env import aio as aio_module
from raftq.env.aio import AioSync, AioUnavailableError
from raftq.env.disk_threads import DiskThreads


async def until(predicate):
    async with asyncio.timeout(5):
        while not predicate():  # noqa: ASYNC110 - nothing here sets an event.
            await asyncio.sleep(0.001)


def descriptors():
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def written(path, size):
    file = path.open("wb", buffering=0)
    file.write(bytes(size))
    return file


def test_completions_of_a_burst_wake_the_loop_once():
    async def main():
        loop = asyncio.get_running_loop()
        wakes = []
        real = loop.call_soon_threadsafe

        def counted(*arguments):
            wakes.append(arguments)
            return real(*arguments)

        loop.call_soon_threadsafe = counted
        threads = DiskThreads(name="test", threads_max=1)
        finished = threading.Event()
        results = []
        for _ in range(9):
            threads.submit(lambda: None, results.append)
        threads.submit(finished.set, results.append)
        # The loop is kept busy until all of them are done: they must share one wake-up.
        assert finished.wait(5)
        threads._threads[0].join(0.05)
        assert results == []
        assert len(wakes) == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert results == [None] * 10
        threads.close()

    asyncio.run(main())


def test_threads_start_only_while_all_are_busy():
    async def main():
        threads = DiskThreads(name="test", threads_max=3)
        release = threading.Event()
        results = []
        for count in range(1, 6):
            threads.submit(release.wait, results.append)
            assert len(threads._threads) == min(count, 3)
        release.set()
        await until(lambda: len(results) == 5)
        threads.submit(lambda: None, results.append)
        assert len(threads._threads) == 3
        threads.close()
        assert len(results) == 6

    asyncio.run(main())


def test_a_bug_in_the_work_is_a_failed_disk():
    async def main():
        threads = DiskThreads(name="test", threads_max=1)
        results = []
        threads.submit(lambda: 1 // 0, results.append)
        threads.close()
        assert isinstance(results[0], OSError)
        assert isinstance(results[0].__cause__, ZeroDivisionError)

    asyncio.run(main())


def test_a_bug_in_one_completion_spares_the_others():
    async def main():
        reported = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context["exception"])
        )
        threads = DiskThreads(name="test", threads_max=1)
        results = []
        threads.submit(lambda: None, lambda _: 1 // 0)
        threads.submit(lambda: None, results.append)
        threads.close()
        assert results == [None]
        assert isinstance(reported[0], ZeroDivisionError)

    asyncio.run(main())


def test_a_loop_that_ended_first_loses_nothing():
    threads = DiskThreads(name="test", threads_max=2)
    results = []
    release = threading.Event()

    async def main():
        for _ in range(4):
            threads.submit(release.wait, results.append)

    asyncio.run(main())
    release.set()
    threads.close()
    assert results == [None] * 4


@pytest.fixture
def aio():
    try:
        aio = AioSync()
    except AioUnavailableError as reason:
        pytest.skip(str(reason))
    yield aio
    aio.close()


def test_aio_maps_a_bad_result_to_an_error(aio, tmp_path, monkeypatch):
    """The kernel's answer is replaced: no disk here fails on demand."""
    real = aio_module.EVENT

    class Failing:
        size = real.size

        @staticmethod
        def iter_unpack(events):
            return [(ticket, obj, -errno.EIO, 0) for ticket, obj, *_ in real.iter_unpack(events)]

    monkeypatch.setattr(aio_module, "EVENT", Failing)

    async def main():
        with written(tmp_path / "a", 10) as file:
            future = asyncio.get_running_loop().create_future()
            aio.sync(file.fileno(), future.set_result)
            error = await future
            assert error.errno == errno.EIO
            assert error.strerror == os.strerror(errno.EIO)

    asyncio.run(main())


def test_aio_reports_a_refused_submit_as_a_failed_sync(aio):
    async def main():
        reader, writer = os.pipe()
        os.close(reader)
        os.close(writer)
        future = asyncio.get_running_loop().create_future()
        aio.sync(writer, future.set_result)
        assert not future.done()
        error = await future
        assert error.errno == errno.EBADF

    asyncio.run(main())


def test_aio_queues_what_the_kernel_has_no_room_for(aio, tmp_path, monkeypatch):
    monkeypatch.setattr(aio_module, "REQUESTS_MAX", 3)

    async def main():
        results = []
        for number in range(20):
            with written(tmp_path / f"f{number}", 1000) as file:
                aio.sync(file.fileno(), results.append)
        await until(lambda: len(results) == 20)
        assert results == [None] * 20

    before = descriptors()
    asyncio.run(main())
    assert descriptors() <= before


def test_aio_closes_with_syncs_outstanding(tmp_path):
    try:
        aio = AioSync()
    except AioUnavailableError as reason:
        pytest.skip(str(reason))
    results = []

    async def main():
        for number in range(10):
            with written(tmp_path / f"f{number}", 100_000) as file:
                aio.sync(file.fileno(), results.append)

    asyncio.run(main())
    aio.close()
    aio.close()
    assert results == [None] * 10


def test_aio_unavailable_says_why(monkeypatch):
    calls = aio_module.SYSTEM_CALLS["x86_64"]._replace(setup=9_999)
    monkeypatch.setattr(aio_module, "SYSTEM_CALLS", {aio_module.platform.machine(): calls})
    with pytest.raises(AioUnavailableError, match="io_setup"):
        AioSync()
    monkeypatch.setattr(aio_module, "SYSTEM_CALLS", {})
    with pytest.raises(AioUnavailableError, match="not known"):
        AioSync()


@pytest.mark.timeout(30)
def test_a_completion_may_close_the_context_while_others_are_waiting_to_be_told(aio, tmp_path):
    """A failed sync stops the node, from inside its callback: it must not wait for what has come."""
    told = []

    async def main():
        files = [written(tmp_path / str(number), 100) for number in range(3)]

        def first(error):
            told.append(error)
            aio.close()

        aio.sync(files[0].fileno(), first)
        for file in files[1:]:
            aio.sync(file.fileno(), told.append)
        # The loop is kept busy until all of them are done: they come in one batch.
        time.sleep(0.3)  # noqa: ASYNC251 - that is what is wanted here.
        await until(lambda: len(told) == 3)
        for file in files:
            file.close()

    asyncio.run(main())
    assert told == [None] * 3
