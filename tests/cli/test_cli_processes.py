"""Goal: nodes are real processes that start, die, come back and never stay behind; commands use them.

Method: processes on loopback; the commands are run as a user runs them, as processes of their own.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from raftq.cli.processes import Processes
from raftq.embedded.ledger import read_ledger
from raftq.errors import ConnectionFailed, InvalidArgument

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def raftq(*arguments, **options):
    """A finished command."""
    return subprocess.run(
        [sys.executable, "-m", "raftq", *map(str, arguments)],
        capture_output=True,
        timeout=100,
        check=False,
        **options,
    )


def exists(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_node_is_killed_and_comes_back(tmp_path):
    async def main():
        async with Processes(3, data=tmp_path) as processes, processes.client() as client:
            await client.create_queue("orders", partitions=3)
            receipts = await client.send_many("orders", [b"%d" % n for n in range(300)])
            assert len(receipts) == 300
            processes.kill("n1")
            assert not processes.is_running("n1")
            await client.send_many("orders", [b"more"] * 30)
            processes.start_node("n1")
            await processes.ready()
            processes.pause("n2")
            await client.send_many("orders", [b"still more"] * 3)
            processes.resume("n2")
            status, text = await processes.ask("n3", "/metrics")
            assert status == 200
            assert b"raftq_node_is_ready" in text
            await processes.terminate("n3")
            assert (await client.describe_queue("orders")).depth == 333
            ids = [processes.process_id(name) for name in processes.names]
        assert not any(map(exists, ids))
        assert (tmp_path / "n1.log").stat().st_size

    asyncio.run(main())


def test_a_node_that_cannot_start_is_named(tmp_path):
    (tmp_path / "n1").write_text("this is not a directory")

    async def main():
        with pytest.raises(ConnectionFailed, match="n1 ended with status 1"):
            await Processes(1, data=tmp_path).start()

    asyncio.run(main())


@pytest.mark.parametrize("stopped", [False, True])
def test_no_node_outlives_its_parent(tmp_path, stopped):
    """The parent is killed without a chance to do anything; its nodes run, or are stopped."""
    program = textwrap.dedent(f"""
        import asyncio
        from raftq.cli.processes import Processes

        async def main():
            async with Processes(1, data={str(tmp_path)!r}) as processes:
                if {stopped}:
                    processes.pause("n1")
                print(processes.process_id("n1"), flush=True)
                await asyncio.sleep(100)

        asyncio.run(main())
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        node = int(parent.stdout.readline())
        assert exists(node)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not exists(node))


def test_dev_serves_the_commands_and_stops_on_ctrl_c(tmp_path):
    command = [
        sys.executable,
        "-m",
        "raftq",
        "dev",
        "--data",
        str(tmp_path),
        "--port",
        "0",
        "--json",
    ]
    dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        started = json.loads(dev.stdout.readline())
        environment = os.environ | {"RAFTQ_URL": started["url"]}

        def ask(*arguments, **options):
            done = raftq(*arguments, "--json", env=environment, **options)
            assert done.returncode == 0, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        assert ask("queue", "create", "orders", "--partitions", "2")[0]["partitions"] == 2
        assert len(ask("send", "orders", input=b"one\ntwo\nthree")) == 3
        taken = ask("receive", "orders", "--max", "10", "--wait", "1", "--no-ack")
        assert sorted(message["body"] for message in taken) == ["one", "three", "two"]
        again = ask("receive", "orders", "--max", "10", "--wait", "1")
        assert {message["delivery_count"] for message in again} == {2}
        assert ask("queue", "describe", "orders")[0]["settled"] == 3
        read = ask(
            "tail", "orders", "-p", again[0]["partition"], "--start", "earliest", "--no-follow"
        )
        assert again[0]["body"] in [message["body"] for message in read]
        assert ask("dead", "list", "orders") == []
        assert all(node["up"] for node in ask("cluster", "status")[0]["nodes"])
        assert ask("queue", "delete", "orders") == [{"name": "orders", "deleted": True}]
        assert raftq("queue", "describe", "orders", env=environment).returncode == 1
    finally:
        dev.send_signal(signal.SIGINT)
        out, errors = dev.communicate(timeout=30)
    assert (dev.returncode, out) == (0, b""), errors
    assert not any(exists(node["process"]) for node in started["nodes"])
    assert raftq("log", "verify", tmp_path).returncode == 0


def test_dev_makes_a_lost_replica_anew(tmp_path):
    async def main():
        async with Processes(3, data=tmp_path, groups=1) as processes, processes.client() as client:
            await client.create_queue("orders")

    asyncio.run(main())
    lost = tmp_path / "n2" / "group-1"
    shutil.rmtree(lost)
    command = [sys.executable, "-m", "raftq", "dev", "--data", str(tmp_path), "--port", "0"]
    dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = dev.stderr.readline().decode()
        assert line.startswith("data and logs are in"), line
        assert any(each.name.startswith("segment-") for each in lost.iterdir())
    finally:
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=30)


@pytest.mark.parametrize(
    ("there", "nodes", "said"),
    [
        (["n1", "n2"], 3, "the nodes n1, n2; start it with --nodes 2, or use another directory"),
        (["n1", "n2", "n3"], 1, "start it with --nodes 3, or use another directory"),
        (["n1", "n3"], 2, "the nodes n1, n2, n3; start it with --nodes 3"),
        (["n4", "n5"], 5, "the data of n1, n2, n3 is gone, and without a majority"),
    ],
)
def test_a_directory_of_other_nodes_is_refused_with_what_to_do(tmp_path, there, nodes, said):
    for name in there:
        (tmp_path / name).mkdir()
        (tmp_path / name / "node").touch()
    with pytest.raises(InvalidArgument, match=said):
        asyncio.run(Processes(nodes, data=tmp_path).start())


def dev_command(data, *more):
    return [sys.executable, "-m", "raftq", "dev", "--data", str(data), *map(str, more)]


@contextlib.contextmanager
def running_dev(data, *more):
    """A `raftq dev` that is ready, and the url it printed; stopped with Ctrl-C."""
    dev = subprocess.Popen(dev_command(data, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield dev, dev.stdout.readline().decode().strip()
    finally:
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=30)


def test_a_second_dev_on_the_same_ports_or_directory_is_refused(tmp_path):
    port = 20_000 + os.getpid() % 12_000
    with running_dev(tmp_path / "first", "--port", port) as (_, url):
        assert url.startswith(f"raftq://127.0.0.1:{port},")
        log = (tmp_path / "first" / "n1.log").read_bytes()
        second = raftq("dev", "--data", tmp_path / "second", "--port", port)
        third = raftq("dev", "--data", tmp_path / "first", "--port", 0)
        assert (tmp_path / "first" / "n1.log").read_bytes() == log
    assert (second.returncode, second.stdout) == (1, b"")
    assert f"ports {port}, {port + 1}, {port + 2}, {port + 100}".encode() in second.stderr
    assert f"a raftq node on {tmp_path}/first/n1".encode() in second.stderr
    assert b"--port " in second.stderr
    assert not list((tmp_path / "second").iterdir())
    assert (third.returncode, third.stdout) == (1, b"")
    assert b"is in use by process" in third.stderr


def test_nobody_answers_in_the_name_of_our_nodes(tmp_path):
    """Another cluster's node, which is ready, stands where ours would have to listen."""

    async def main():
        async with Processes(1, data=tmp_path / "first") as first:
            second = Processes(1, data=tmp_path / "second")
            second.data.mkdir()
            second.addresses = dict(first.addresses)
            second.start_node("n1")
            status, _ = await second.ask("n1", "/health/ready")
            assert status == 200
            with pytest.raises(ConnectionFailed, match="address already in use"):
                await second.ready()
            second.kill_all()

    asyncio.run(main())


def test_dev_ends_when_no_node_is_left_and_names_the_signal(tmp_path):
    with running_dev(tmp_path, "--nodes", 1, "--port", 0, "--json") as (dev, started):
        os.kill(json.loads(started)["nodes"][0]["process"], signal.SIGKILL)
        assert dev.wait(timeout=20) == 1
        said = dev.stderr.read()
    assert b"NodeFailed: n1 was ended by signal SIGKILL" in said
    assert b"no node is left" in said


def test_dev_goes_on_with_a_majority_when_a_directory_is_gone(tmp_path):
    with running_dev(tmp_path, "--port", 0) as (_, url):
        assert raftq("queue", "create", "orders", "--url", url).returncode == 0
    shutil.rmtree(tmp_path / "n1")
    with running_dev(tmp_path, "--port", 0) as (dev, url):
        said = dev.stderr.readline().decode()
        assert raftq("send", "orders", "hello", "--url", url).returncode == 0
    assert said.startswith("n1 is not ready: "), said
    assert "raftq cluster replace n1" in said


def test_a_node_stops_in_order_on_sigterm(tmp_path):
    config = tmp_path / "n1.toml"
    config.write_text(f'name = "n1"\ndata = "{tmp_path}/n1"\nlisten = "127.0.0.1:0"\n')
    command = [
        sys.executable,
        "-m",
        "raftq",
        "node",
        "--config",
        str(config),
        "--json",
        "--log-json",
    ]
    node = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"RAFTQ_CLUSTER": "n1=127.0.0.1:0", "RAFTQ_ADMIN_LISTEN": "127.0.0.1:0"},
    )
    try:
        said = json.loads(node.stdout.readline())
        assert said["node"] == "n1"
        assert said["admin_listen"].startswith("127.0.0.1:")
        # A second node on the directory is refused, in one line.
        second = raftq(*command[3:], env=os.environ | {"RAFTQ_CLUSTER": "n1=127.0.0.1:0"})
        assert second.returncode == 1
        refusal = json.loads(second.stderr.splitlines()[-1])
        assert (refusal["error"], refusal["outcome"]) == ("InvalidArgument", "not_applied")
        assert refusal["message"].startswith("data directory")
    finally:
        node.terminate()
        out, errors = node.communicate(timeout=30)
    assert node.returncode == 0, errors
    assert json.loads(out) == {"node": "n1", "stopped": True}
    assert all(json.loads(line)["event"] for line in errors.splitlines())


def hears_ctrl_c():
    """Whoever runs these tests in the background may have had Ctrl-C ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_while_modules_are_loaded_ends_silently(tmp_path):
    """The program interrupts itself at the first file of the command line that is loaded."""
    program = textwrap.dedent("""
        import os, signal, sys
        import raftq.cli

        class Interrupts:
            def find_spec(self, name, path, target=None):
                os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupts())
        raftq.cli.main()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        preexec_fn=hears_ctrl_c,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_send_that_is_interrupted_says_how_many_were_sent(tmp_path):
    async def main():
        async with Processes(1, data=tmp_path) as processes, processes.client() as client:
            await client.create_queue("orders")
            send = subprocess.Popen(  # noqa: ASYNC220 - it returns at once.
                [sys.executable, "-m", "raftq", "send", "orders", "--url", processes.url],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=hears_ctrl_c,  # noqa: PLW1509 - it takes no lock.
            )
            send.stdin.write(b"one\ntwo\n")
            send.stdin.flush()
            while (await client.describe_queue("orders")).depth < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)  # Its receipts are on the way to it.
            send.send_signal(signal.SIGINT)
            try:
                assert send.wait(timeout=10) == 130
            finally:
                send.kill()
                send.stdin.close()
            with send.stderr:
                assert send.stderr.read() == b"interrupted: sent 2 messages to orders\n"

    asyncio.run(main())


def test_nobody_answering_is_an_error(tmp_path):
    done = raftq("queue", "list", "--url", "raftq://127.0.0.1:1", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"ConnectionFailed: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.spark
def test_the_demo_proves_a_small_input(tmp_path):
    source = Path(__file__).resolve().parents[2] / "raftq" / "raft"
    done = raftq("demo", "--input", source, "--keep", tmp_path / "kept", "--json")
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, (verdict["faults"], done.stderr)
    assert verdict["right"] is True
    assert verdict["messages"] == verdict["acknowledged"] == verdict["consumed"] > 1_000
    assert verdict["files"] == verdict["files_identical"] > 10
    assert verdict["replicas_identical"] is True
    assert verdict["failover_ms"] < 5_000
    assert (verdict["audit"], verdict["audit_violations"]) == ("passed", [])
    ledger = tmp_path / "kept" / "ledger.jsonl"
    assert sum(row.count for row in read_ledger(ledger)) == verdict["messages"]
