"""Goal: real processes: a node whose disk is gone is replaced by a command, under load.

Method: kill -9, the directory is removed, the node starts again with an empty one; an operator's
client asks for it to be replaced. When every group has changed its members another node is killed:
what is acknowledged from then on, the new directory has acknowledged.
"""

import asyncio
import shutil

import pytest
from cluster_load import Load

from raftq.cli.processes import Processes
from raftq.errors import InvalidArgument

pytestmark = pytest.mark.timeout(60)


async def refused(client, reason):
    """Ask until it is refused for this reason; what was answered before."""
    answers = []
    async with asyncio.timeout(20):
        while True:
            try:
                answers.append(await client.replace_node("n3"))
            except InvalidArgument as error:
                if reason in str(error):
                    return answers
            await asyncio.sleep(0.1)


async def run_replaced(directory):
    async with Processes(3, data=directory) as processes, processes.client() as client:
        load = Load(processes.url, seed=5)
        await load.start()
        await asyncio.sleep(0.3)
        assert await refused(client, "is up") == []
        processes.kill("n3")
        shutil.rmtree(processes.directory("n3"))
        await refused(client, "no new data directory")
        processes.start_node("n3")
        # It is accepted as soon as the new directory has asked, and in work until all have changed.
        answers = await refused(client, "is up")
        await processes.ready()
        processes.kill("n2")
        acked = len(load.acked)
        await asyncio.sleep(2)
        assert len(load.acked) > acked, "the new directory does not count"
        processes.start_node("n2")
        await processes.ready()
        await load.finish()
        await load.judge()
        return answers


def test_a_node_whose_disk_is_gone_is_replaced_under_load(tmp_path):
    answers = asyncio.run(run_replaced(tmp_path))
    assert 0 in answers[0]
    assert len(answers[-1]) <= len(answers[0])
