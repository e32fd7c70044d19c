"""`python sim_seed.py SEED...` prints the trace hash of each seed's run, and its violations."""

import sys

from raftq.sim.run import simulate

if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        result = simulate(seed)
        print(seed, result.trace_hash, result.counters["callbacks"], result.violations)
