"""Replicas live in different processes: nothing may depend on what differs between those."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from queue_random import random_log

HERE = Path(__file__).parent


def test_a_log_means_the_same_under_every_hash_seed(tmp_path):
    path = tmp_path / "log.pickle"
    path.write_bytes(pickle.dumps(random_log(11, 600).log))
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "queue_random.py"), str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HERE.parent.parent)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "4242")
    ]
    first, second = (process.communicate(timeout=15)[0].split() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first) > 400
    assert first == second
