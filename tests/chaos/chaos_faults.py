"""The faults of processes and networks. Each is a function: it injects, lasts, and lets go.

Rules

1. What chance decides is drawn from the stage's generator, in the same order for the same seed; who
   leads when a fault comes is not in anybody's hands.
2. A fault says what it does before it does it. What it leaves behind, `Stage.recover` heals.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from chaos_network import CLIENTS, Cut, between
from chaos_stage import Stage, ViolationError

Act = Callable[[Stage], Awaitable[None]]

STABLE_SECONDS = 2.0
"""Within this a partly connected majority must have a leader that stays."""


class Fault(NamedTuple):
    """A kind of fault: what it needs (of `filter`, `layer`, `disks`), and in words what it does."""

    act: Act
    needs: tuple[str, ...]
    text: str
    nodes_least: int = 3
    is_last: bool = False
    """It leaves a node damaged: nothing may come after it."""


# --- Processes ---------------------------------------------------------------------------------


async def kill_leader(stage: Stage) -> None:
    victim, group = await stage.leader()
    stage.say(f"kill -9 {victim}, leader of group {group}")
    stage.nodes.kill(victim)
    await stage.seconds(0.7, 1.5)
    stage.nodes.start_node(victim)


async def kill_node(stage: Stage) -> None:
    victim = stage.any_node()
    stage.say(f"kill -9 {victim}")
    stage.nodes.kill(victim)
    await stage.seconds(0.0, 1.5)
    stage.nodes.start_node(victim)
    if stage.choose.random() < 0.5:
        # Once more, while it recovers.
        await stage.seconds(0.1, 0.6)
        stage.say(f"kill -9 {victim} while it starts")
        stage.nodes.kill(victim)


async def kill_all(stage: Stage) -> None:
    stage.say("kill -9 all nodes")
    stage.nodes.kill_all()
    await stage.seconds(0.0, 0.5)
    for name in stage.others():
        stage.nodes.start_node(name)


async def restart(stage: Stage) -> None:
    victim, group = await stage.leader()
    stage.say(f"SIGTERM to {victim}, leader of group {group}")
    await stage.nodes.terminate(victim)
    await stage.seconds(0.2, 0.5)
    stage.nodes.start_node(victim)


async def pause_leader(stage: Stage) -> None:
    victim, group = await stage.leader()
    stage.say(f"SIGSTOP {victim}, leader of group {group}")
    stage.nodes.pause(victim)
    await stage.seconds(1.5, 4.0)
    stage.say(f"SIGCONT {victim}")
    stage.nodes.resume(victim)


async def pause_node(stage: Stage) -> None:
    """Short and long, several times: a node that is never quite there."""
    victim = stage.any_node()
    for _ in range(stage.choose.randint(1, 4)):
        stage.say(f"SIGSTOP {victim}")
        stage.nodes.pause(victim)
        await stage.seconds(0.05, 1.2)
        stage.nodes.resume(victim)
        await stage.seconds(0.05, 0.5)


# --- Networks ----------------------------------------------------------------------------------


async def _cut(stage: Stage, text: str, cuts: list[Cut], least: float, most: float) -> None:
    stage.say(text)
    stage.cut(cuts)
    await stage.seconds(least, most)


async def cut_leader(stage: Stage) -> None:
    victim, group = await stage.leader()
    cuts = between([victim], stage.others(victim))
    await _cut(
        stage, f"{victim}, leader of group {group}, cut off from its peers only", cuts, 2.5, 5.0
    )


async def isolate_leader(stage: Stage) -> None:
    victim, group = await stage.leader()
    cuts = between([victim], [*stage.others(victim), CLIENTS])
    await _cut(stage, f"{victim}, leader of group {group}, cut off from everybody", cuts, 2.5, 5.0)


async def split(stage: Stage) -> None:
    names = stage.others()
    count = stage.choose.randint(1, (len(names) - 1) // 2)
    minority, majority = names[:count], names[count:]
    cuts = between(minority, majority)
    seen = "both sides"
    if stage.choose.random() < 0.5:
        cuts += between(minority, [CLIENTS])
        seen = "the majority"
    text = f"{'+'.join(sorted(minority))} | {'+'.join(sorted(majority))}, clients see {seen}"
    await _cut(stage, text, cuts, 1.5, 4.0)


async def one_way(stage: Stage) -> None:
    victim = stage.any_node() if stage.choose.random() < 0.3 else (await stage.leader())[0]
    others = stage.others(victim)
    if stage.choose.random() < 0.5:
        cuts = [(victim, other) for other in others]
        text = f"{victim} hears its peers and is not heard"
    else:
        cuts = [(other, victim) for other in others]
        text = f"{victim} is heard by its peers and hears nothing"
    if stage.choose.random() < 0.3:
        cuts.append((CLIENTS, victim))
        text += ", nor its clients"
    await _cut(stage, text, cuts, 2.0, 4.0)


async def bridge(stage: Stage) -> None:
    """Two sides that do not see each other, and one node that sees both."""
    leader, _ = await stage.leader()
    names = stage.others(leader)
    middle = names.pop() if stage.choose.random() < 0.7 else leader
    rest = [*([leader] if middle != leader else []), *names]
    half = len(rest) // 2
    text = f"{'+'.join(rest[:half])} | {'+'.join(rest[half:])}, {middle} sees both"
    await _cut(stage, text, between(rest[:half], rest[half:]), 2.5, 5.0)


async def partial(stage: Stage) -> None:
    """Of five, three see each other; the fourth sees only the second, the fifth only the third.

    Raises: ViolationError unless every group has one leader that stays, within `STABLE_SECONDS`.
    """
    one, two, three, four, five = stage.others()
    cuts = between([four], [one, three, five]) + between([five], [one, two, four])
    stage.say(f"{one}+{two}+{three} see each other; {four} sees only {two}, {five} only {three}")
    stage.cut(cuts)
    begun = time.monotonic()
    before: dict[int, tuple[int, str]] = {}
    changed_at: dict[int, float] = {}
    while time.monotonic() < begun + 3 * STABLE_SECONDS:
        for name, status in (await stage.nodes.statuses()).items():
            for group in status["groups"]:
                found = (group["term"], name)
                if group["role"] == "leader" and found > before.get(group["group"], (0, "")):
                    if group["group"] in before:
                        changed_at[group["group"]] = time.monotonic() - begun
                    before[group["group"]] = found
        await asyncio.sleep(0.03)
    served = {group: at for group, at in changed_at.items() if group not in stage.excused}
    late = {group: round(at, 2) for group, at in served.items() if at > STABLE_SECONDS}
    missing = sorted(set(stage.voters) - stage.excused - set(before))
    if missing:
        raise ViolationError(f"the groups {missing} have no leader, and could have")
    stage.say(f"last change of a leader after {max(served.values(), default=0.0):.2f} s")
    if late:
        raise ViolationError(f"leaders still change, seconds after the partition: {late}")


async def flapping(stage: Stage) -> None:
    victim = stage.any_node()
    others = stage.others(victim)
    if stage.choose.random() < 0.5:
        others = others[:1]
    cuts = between([victim], others) if stage.choose.random() < 0.7 else [(victim, others[0])]
    stage.say(f"{victim} <-> {'+'.join(sorted(others))} flaps every 50-500 ms")
    end = time.monotonic() + stage.choose.uniform(3.0, 6.0)
    while time.monotonic() < end:
        stage.cut(cuts)
        await stage.seconds(0.05, 0.5)
        stage.network.heal()
        await stage.seconds(0.05, 0.5)


async def loss(stage: Stage) -> None:
    percent = stage.choose.randint(1, 40)
    stage.say(f"{percent} % of all packets lost")
    stage.network.lose(percent)
    await stage.seconds(3.0, 6.0)


async def reset_storm(stage: Stage) -> None:
    percent = stage.choose.choice((1, 2, 5, 20))
    stage.say(f"{percent} % of TCP packets answered by a reset")
    stage.network.reset(percent)
    await stage.seconds(1.5, 4.0)


FAULTS: dict[str, Fault] = {
    "kill_leader": Fault(kill_leader, (), "kill -9 of a leader, restarted after about a second"),
    "kill_node": Fault(kill_node, (), "kill -9 of any node, sometimes again while it starts"),
    "kill_all": Fault(kill_all, (), "kill -9 of all nodes at once"),
    "restart": Fault(restart, (), "planned restart: SIGTERM to a leader, then start"),
    "pause_leader": Fault(pause_leader, (), "SIGSTOP of a leader for 1.5-4 s"),
    "pause_node": Fault(pause_node, (), "SIGSTOP of any node, 50 ms-1.2 s, several times"),
    "cut_leader": Fault(
        cut_leader, ("filter",), "a leader cut off from its peers, not from clients"
    ),
    "isolate_leader": Fault(isolate_leader, ("filter",), "a leader cut off from everybody"),
    "split": Fault(split, ("filter",), "clean partition into majority and minority"),
    "one_way": Fault(one_way, ("filter",), "a node that hears and is not heard, or the reverse"),
    "bridge": Fault(bridge, ("filter",), "two sides, and one node that sees both"),
    "partial": Fault(
        partial, ("filter",), "of five: 4 sees only 2, 5 only 3; a stable leader in 2 s", 5
    ),
    "flapping": Fault(flapping, ("filter",), "a connection that comes and goes every 50-500 ms"),
    "loss": Fault(loss, ("filter",), "1-40 % of all packets lost"),
    "reset_storm": Fault(reset_storm, ("filter",), "TCP resets, 1-20 % of packets"),
}
"""Name on the command line -> what it is."""
