"""The simulator: the four ports, made of memory and a seed, and what watches over them.

Theory of operation
-------------------
A whole cluster runs in one thread on one event loop whose time is a number. Nothing waits: when
nothing is ready to run, time jumps to the next timer. Every choice (a delay, a fault, an identity)
is drawn from generators derived from one seed, so that a seed *is* a run: the same seed gives the
same run in every process, and a failure is repeated by repeating its seed.

    loop       deterministic asyncio event loop, virtual time in whole microseconds
    process    one simulated process: what is paused, killed, and owns callbacks
    task       its handles and tasks
    clock      one node's clocks: offset, rate, jumps
    entropy    generators derived from the seed by name
    network    hosts, links, partitions: what connects the network ports of all processes
    stream     one end of a connection, as TCP behaves
    disk       a disk that knows what is durable, and forgets the rest on power loss
    hardware   one machine: clock, disk and a process at a time; kill, power loss, start
    trace      rolling hash over what happened, and a table of it for people
    fault_plan which faults a run has, and when, drawn from the seed
    nemesis    lets the faults of a plan happen, and heals them
    link_faults  those of them that are done to links
    operator   what people do: have a lost disk replaced
    checkers   pure observers of the replicated logs: what must never be seen
    ledger     pure observer of messages: lost, invented, doubled, out of order
    cluster    real nodes on machines, and machines for clients
    watch      what the checkers are told of every replica
    workload   what the workers of a run share, and how the ledger hears of it
    workers    what clients do: produce, consume, read, ask
    final      what must hold when everything is healed and drained
    stage      what a scenario has in hand: it goes through one counter-example, step by step
    run        one seed: a cluster, a workload, faults, a verdict
    bugs       known bugs, and the scenario that finds each
    reexec     starts the process anew with a fixed hash seed

Rules

1. Nothing here reads real time, real randomness, or the hash of a str to decide anything.
2. Simulated nodes share nothing but the network: each lives in its own `Process`.
3. An exception that nobody handles fails the run, wherever it happens.
4. Only the command line and tests import this package.
"""
