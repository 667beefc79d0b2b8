"""The tables and caches of the product that outlive a request, found in its source: those with texts in their keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "mqbroker"
#: Of daemons and clients; programs that end with their work are left out.
FOLDERS = ("access", "broker", "client", "daemons", "filter", "ha", "namesrv", "remoting", "store", "wire")
_TABLE = re.compile(r"(?:dict|OrderedDict|defaultdict|Counter|set|BoundedCache|Mapping|WeakValueDictionary)\[(.*)\]$")
#: Names that the source has for tables.
_ALIASES = ("Offsets",)
#: Types of keys that texts of peers may be in.
_TEXTS = re.compile(r"\b(?:str|bytes|object|Any|MessageQueue|_Key|QueueKey|QueueNumbers|TopicQueues|K)\b")
_MADE = ("OrderedDict", "Counter", "defaultdict", "BoundedCache", "WeakValueDictionary")


def tables() -> Iterator[str]:
    """Each as "file: name"."""
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            if "offline" in path.parts:
                continue
            where = path.relative_to(SOURCE).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in dict.fromkeys([*_in_module(tree), *_in_classes(tree), *_caching(tree)]):
                yield f"{where}: {name}"


def _in_module(tree: ast.Module) -> Iterator[str]:
    """Empty tables of the module."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and _has_texts(node) and _is_empty(node.value):
            yield ast.unparse(node.target)


def _in_classes(tree: ast.Module) -> Iterator[str]:
    """Attributes of objects, but for those of values: of bodies, and of what is frozen."""
    for kind in ast.walk(tree):
        if not isinstance(kind, ast.ClassDef):
            continue
        is_value = any("Body" in ast.unparse(base) for base in kind.bases) or any(
            ast.unparse(each).startswith("attrs.frozen") for each in kind.decorator_list
        )
        for node in ast.walk(kind):
            if isinstance(node, ast.Assign) and (_is_empty(node.value, ()) or _is_filled(node.value)):
                target = ast.unparse(node.targets[0])
            elif isinstance(node, ast.AnnAssign) and _has_texts(node):
                target = ast.unparse(node.target)
            else:
                continue
            value = "" if node.value is None else ast.unparse(node.value)
            if target.startswith("self.") and not isinstance(node.value, ast.Name):
                yield f"{kind.name}.{target.removeprefix('self.')}"
            elif (
                node in kind.body
                and ("factory=" in value or "Factory(" in value)
                and ("init=False" in value or not is_value)
            ):
                yield f"{kind.name}.{target}"


def _caching(tree: ast.Module) -> Iterator[str]:
    """Functions whose results are kept."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("cache" in ast.unparse(each) for each in node.decorator_list):
            yield f"{node.name}()"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and "cache" in ast.unparse(node.func.func):
            yield f"{ast.unparse(node.func)}"


def _has_texts(node: ast.AnnAssign) -> bool:
    kind = ast.unparse(node.annotation)
    if kind in _ALIASES:
        return True
    found = _TABLE.match(kind)
    return found is not None and _TEXTS.search(_key(found.group(1))) is not None


def _key(inside: str) -> str:
    """The first of the types in a subscript."""
    depth = 0
    for at, letter in enumerate(inside):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            return inside[:at]
    return inside


def _is_filled(value: ast.expr) -> bool:
    """Whether a table is made of another one."""
    return isinstance(value, ast.DictComp | ast.SetComp)


def _is_empty(value: ast.expr | None, made: tuple[str, ...] = ("dict", "set")) -> bool:
    if isinstance(value, ast.Dict):
        return bool(made) and not value.keys
    named = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return named and ast.unparse(value).partition("(")[0] in (*made, *_MADE)
