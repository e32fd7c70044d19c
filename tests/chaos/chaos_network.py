"""The machines of the run: a network namespace for each node and for the clients, and a bridge.

    this process (observer) -- bridge -- n1, n2, ... (10.77.0.1, .2, ...), clients (10.77.0.101)

Rules

1. Made inside the harness's own network and mount namespaces: all of it vanishes with them.
2. Whoever is to be cut off is cut by packet filters on the receiving side. Packets vanish, as with
   a broken switch; only a storm of resets answers.
3. Nobody cuts off the observer: it sees each node at any time.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

OBSERVER = "10.77.0.254"
CLIENTS = "clients"

Cut = tuple[str, str]
"""(from, to): packets of the first do not reach the second."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


class Network:
    """`nodes` and the clients, joined by a bridge."""

    def __init__(self, nodes: Iterable[str]) -> None:
        names = [*nodes, CLIENTS]
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self.addresses[CLIENTS] = "10.77.0.101"
        self._prefix = f"chaos-{os.getpid()}-"

    def build(self) -> None:
        Path("/run/netns").mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "chaos", "type", "bridge")
        _ip("addr", "add", f"{OBSERVER}/24", "dev", "chaos")
        _ip("link", "set", "chaos", "up")
        for name, address in self.addresses.items():
            space, port = self._prefix + name, f"to-{name}"
            _ip("netns", "add", space)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", port, "master", "chaos", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        if self.can_filter:
            for name in self.addresses:
                self._filter(
                    name,
                    "add table inet chaos\n"
                    "add chain inet chaos input { type filter hook input priority 0; }\n",
                )

    can_filter = True
    """Without packet filters there is no cutting; nobody asks for it then."""

    def inside(self, name: str) -> list[str]:
        """What to put before a command so that it runs on that machine."""
        return ["nsenter", f"--net=/run/netns/{self._prefix}{name}", "--"]

    def _filter(self, name: str, rules: str) -> None:
        subprocess.run([*self.inside(name), "nft", "-f", "-"], input=rules.encode(), check=True)

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Let exactly these packets vanish, and no others."""
        rules: dict[str, list[str]] = {name: [] for name in self.addresses}
        for sender, receiver in cuts:
            rules[receiver].append(f"ip saddr {self.addresses[sender]} drop")
        self._set(rules)

    def lose(self, percent: int) -> None:
        """Of a hundred packets between machines, so many vanish by chance."""
        self._everywhere(f"numgen random mod 100 < {percent} drop")

    def reset(self, percent: int) -> None:
        """So many packets of TCP connections are answered by a reset."""
        self._everywhere(
            f"meta l4proto tcp numgen random mod 100 < {percent} reject with tcp reset"
        )

    def heal(self) -> None:
        """Everybody reaches everybody."""
        if self.can_filter:
            self._set({name: [] for name in self.addresses})

    def _everywhere(self, what: str) -> None:
        rule = f"ip saddr != {OBSERVER} iif eth0 {what}"
        self._set({name: [rule] for name in self.addresses})

    def _set(self, rules: dict[str, list[str]]) -> None:
        # One transaction a machine: old rules and new ones are never in force together.
        for name, wanted in rules.items():
            lines = [f"add rule inet chaos input {rule}" for rule in wanted]
            self._filter(name, "\n".join(["flush chain inet chaos input", *lines, ""]))


def both(cuts: Iterable[Cut]) -> list[Cut]:
    """The cuts, in either direction."""
    return [cut for a, b in cuts for cut in ((a, b), (b, a))]


def between(some: Iterable[str], others: Iterable[str]) -> list[Cut]:
    """Cut every one of the first from every one of the others."""
    others = list(others)
    return both((a, b) for a in some for b in others if a != b)


def is_served(voters: list[str], cuts: Iterable[Cut]) -> bool:
    """Whether a group of these voters has one whom its clients reach, and who reaches a majority."""
    gone = set(both(cuts))
    return any(
        (CLIENTS, name) not in gone
        and 2 * sum((name, other) not in gone for other in voters) > len(voters)
        for name in voters
    )
