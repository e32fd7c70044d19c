"""The house rules that no linter knows, as functions from source text to findings.

Rules: a function here takes the text of a module and gives back findings, each a line number and a
sentence that says what to do instead. It reads no files, so that every rule can be shown to fail
on a small sample. Which files a rule applies to is decided in `test_style.py`.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80

BANNED_FOLDERS = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "manager"})

# Built from halves, so that this file does not hold what it looks for.
LEFT_OVER_MARKS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/")

BANNED_CALLS = {
    "time": "the clock port (raftq.env)",
    "datetime.datetime.now": "the clock port (raftq.env)",
    "datetime.datetime.utcnow": "the clock port (raftq.env)",
    "datetime.datetime.today": "the clock port (raftq.env)",
    "datetime.date.today": "the clock port (raftq.env)",
    "random": "the entropy port (raftq.env)",
    "secrets": "the entropy port (raftq.env)",
    "uuid": "the entropy port (raftq.env)",
    "os": "the disk port (raftq.env), or the entropy port for urandom",
    "tempfile": "the disk port (raftq.env)",
    "shutil": "the disk port (raftq.env)",
    "open": "the disk port (raftq.env)",
    "io.open": "the disk port (raftq.env)",
    "socket": "the network port (raftq.env)",
    "threading": "the event loop; threads live in raftq.env",
    "concurrent": "the event loop; threads live in raftq.env",
    "multiprocessing": "the event loop; processes are started by raftq.cli",
    "subprocess": "the event loop; processes are started by raftq.cli",
    "signal": "a stop method that the command line calls",
    "asyncio.wait_for": "`async with asyncio.timeout(...)`",
    "asyncio.wait": "asyncio.gather, or futures that are awaited in order: it iterates a set",
    "asyncio.as_completed": "futures that are awaited in order: it iterates a set",
    "asyncio.open_connection": "the network port (raftq.env)",
    "asyncio.start_server": "the network port (raftq.env)",
    "asyncio.open_unix_connection": "the network port (raftq.env)",
    "asyncio.start_unix_server": "the network port (raftq.env)",
    "asyncio.create_subprocess_exec": "the event loop; processes are started by raftq.cli",
    "asyncio.create_subprocess_shell": "the event loop; processes are started by raftq.cli",
    "asyncio.to_thread": "the disk port (raftq.env), which owns the only threads",
}
"""Dotted names that are refused outside raftq/env, with everything below them, and what to use."""

BANNED_METHODS = {
    "create_connection": "the network port (raftq.env)",
    "create_server": "the network port (raftq.env)",
    "create_unix_connection": "the network port (raftq.env)",
    "create_unix_server": "the network port (raftq.env)",
    "create_datagram_endpoint": "the network port (raftq.env)",
    "run_in_executor": "the disk port (raftq.env), which owns the only threads",
    "add_signal_handler": "a stop method that the command line calls",
}
"""Methods of the event loop: refused by name, whatever they are called on."""


class Finding(NamedTuple):
    line: int
    text: str


def file_is_short(source: str) -> Iterator[Finding]:
    count = len(source.splitlines())
    if count > MAX_FILE_LINES:
        yield Finding(count, f"{count} lines: split the file; aim for 400")


def functions_are_short(source: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > MAX_FUNCTION_LINES:
                yield Finding(node.lineno, f"{node.name} has {count} lines: split it; aim for 70")


def has_docstring(source: str) -> Iterator[Finding]:
    if not ast.get_docstring(ast.parse(source)):
        yield Finding(1, "no module docstring: say what it is, its rules, what it must not know")


def no_left_over_marks(source: str) -> Iterator[Finding]:
    marks = re.compile(rf"\b({'|'.join(LEFT_OVER_MARKS)})\b")
    for number, line in enumerate(source.splitlines(), 1):
        if found := marks.search(line):
            yield Finding(number, f"{found[0]}: do it now, or write an issue and say why not now")


def no_machine_paths(source: str) -> Iterator[Finding]:
    absolute = re.compile(rf"(?<![\w.])({'|'.join(MACHINE_PATHS)})")
    for number, line in enumerate(source.splitlines(), 1):
        if found := absolute.search(line):
            yield Finding(number, f"{found[0]}: a path of one machine; use a relative one")


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported local name stands for, as a dotted name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted_name(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name of an expression, or nothing if it does not start at an import."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    start = names.get(node.id, "open" if node.id == "open" else "")
    return ".".join([start, *reversed(parts)]) if start else ""


def replacement(name: str) -> str:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if found := BANNED_CALLS.get(".".join(parts[:length])):
            return found
    return ""


def no_outside_world(source: str) -> Iterator[Finding]:
    """Uses and imports of what only raftq/env may touch."""
    tree = ast.parse(source)
    names = imported_names(tree)
    seen: set[tuple[int, str]] = set()  # `time.monotonic` is a use of `time` too: one is enough.
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            if better := BANNED_METHODS.get(node.attr):
                yield Finding(node.lineno, f".{node.attr}: use {better}")
            found = [dotted_name(node, names)]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found = [dotted_name(node, names)]
        for name in found:
            better = replacement(name)
            if better and (node.lineno, better) not in seen:
                seen.add((node.lineno, better))
                yield Finding(node.lineno, f"{name}: use {better}")


SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet"})
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
ORDER_SEEING_CALLS = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "filter"})


def is_set_annotation(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return is_set_annotation(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.BinOp):
        return is_set_annotation(node.left) or is_set_annotation(node.right)
    if isinstance(node, ast.Subscript):
        return is_set_annotation(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in SET_TYPES
    return isinstance(node, ast.Name) and node.id in SET_TYPES


class SetNames(NamedTuple):
    """Names that hold sets: variables of one function, and attributes anywhere in the module."""

    variables: frozenset[str]
    attributes: frozenset[str]

    def holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Name):
            return node.id in self.variables
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes
        if isinstance(node, ast.BinOp) and isinstance(node.op, SET_OPERATORS):
            return self.holds(node.left) or self.holds(node.right)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                return node.func.id in {"set", "frozenset"}
            if isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS:
                return self.holds(node.func.value)
        return False


def named_sets(tree: ast.AST, known: SetNames) -> SetNames:
    """`known`, and every name in `tree` that is annotated as a set or assigned one."""
    variables, attributes = set(known.variables), set(known.attributes)

    def note(target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            variables.add(target.id)
        elif isinstance(target, ast.Attribute):
            attributes.add(target.attr)

    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and is_set_annotation(node.annotation):
            note(node.target)
        elif isinstance(node, ast.arg) and is_set_annotation(node.annotation):
            variables.add(node.arg)
        elif isinstance(node, ast.Assign) and known.holds(node.value):
            for target in node.targets:
                note(target)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and is_set_annotation(field.annotation):
                    assert isinstance(field.target, ast.Name)
                    attributes.add(field.target.id)
    return SetNames(frozenset(variables), frozenset(attributes))


def order_seen_in(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose order of iteration `node` lets the program see."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.iter
    elif isinstance(node, ast.Starred):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ORDER_SEEING_CALLS:
            yield from node.args
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "join":
            yield from node.args
        elif node.func.attr == "pop" and not node.args:
            yield node.func.value


def no_set_iteration(source: str) -> Iterator[Finding]:
    """Replicas iterate a set in different orders, so a machine must not let its order be seen."""
    tree = ast.parse(source)
    nothing = SetNames(frozenset(), frozenset())
    everywhere = SetNames(frozenset(), named_sets(tree, nothing).attributes)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    found: dict[tuple[int, int], Finding] = {}
    for scope in [tree, *functions]:
        known = everywhere if scope is tree else named_sets(scope, everywhere)
        # A comprehension inside sorted(), sum() and the like is judged as strictly: say it plainly.
        for node in ast.walk(scope):
            for iterated in order_seen_in(node):
                if known.holds(iterated):
                    text = f"iterates the set `{ast.unparse(iterated)}`: use a dict, or sorted()"
                    found[iterated.lineno, iterated.col_offset] = Finding(iterated.lineno, text)
    yield from found.values()


def no_floats(source: str) -> Iterator[Finding]:
    """Floats depend on the machine they are computed on; a replicated state holds integers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield Finding(node.lineno, f"{node.value}: use an integer in a smaller unit")
        elif isinstance(node, ast.Name) and node.id == "float":
            yield Finding(node.lineno, "float: use an integer in a smaller unit")
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            yield Finding(node.lineno, "`/` makes a float: use //")


def mentioned_pages(source: str) -> Iterator[tuple[int, str]]:
    """Every mention of a Markdown file, by its path or its name."""
    for number, line in enumerate(source.splitlines(), 1):
        for found in re.finditer(r"[\w./-]*\w\.md\b", line):
            yield number, found[0]
