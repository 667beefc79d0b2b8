"""Writes the calls of the Twisted and of the blocking face from those of the asyncio face, which are written by hand.

`python -m tests.client.generate_faces` writes both files anew; format them with `ruff format` afterwards.
"""

import ast
from pathlib import Path

import attrs

FOLDER = Path(__file__).parents[2] / "mqbroker" / "client"
SOURCE = FOLDER / "aio.py"
CLIENTS = {"Producer": "ProducerCore", "PullConsumer": "PullConsumerCore"}

_IMPORTS = """
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

{imports}from mqbroker.client.messages import Message, PullResult, RawPull, SendResult
from mqbroker.client.producer import ProducerCore, Selector
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.subscription import ALL
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue
"""

_HEAD = '''
class {name}Calls(ABC):
    """What a {name} does by its core."""

    @abstractmethod
    def _ready(self) -> {core}:
        """Return the core. Raises ClientClosed."""
'''


@attrs.frozen
class Face:
    """One that is generated: `run` is the function that makes what a call returns out of a coroutine."""

    name: str
    title: str
    run: str
    returns: str
    imports: str
    words: tuple[tuple[str, str], ...] = ()

    @property
    def path(self):
        return FOLDER / f"{self.name}_calls.py"


FACES = (
    Face(
        "deferred",
        "The calls of the Twisted face that return Deferreds.",
        "Deferred.fromCoroutine",
        "Deferred[{}]",
        "from twisted.internet.defer import Deferred\n\n",
        (
            ("Return ", "Fire with "),
            ("Fire with when", "Fire when"),
            ("Raises ", "Fails with "),
            ("returns and raises as", "fires and fails as"),
        ),
    ),
    Face(
        "blocking",
        "The calls of the blocking face that wait.",
        "run",
        "{}",
        "from mqbroker.client.blocking_net import run\n",
    ),
)


def is_call(method):
    """Whether it awaits one call of the core, and nothing else."""
    return isinstance(method, ast.AsyncFunctionDef) and "await self._ready()" in ast.unparse(method.body[-1])


def _translated(method, face):
    """`async def f() -> T: return await X` as a function that returns what `face` makes of the coroutine X."""
    last = method.body[-1]
    text = ast.get_docstring(method, clean=False)
    for ours, theirs in face.words:
        text = text.replace(ours, theirs)
    awaited = ast.unparse(last.value.value)
    returns = face.returns.format(ast.unparse(method.returns))
    keyword = "" if returns == "None" else "return "
    body = [ast.Expr(ast.Constant(text)), *ast.parse(f"{keyword}{face.run}({awaited})").body]
    return ast.FunctionDef(method.name, method.args, body, [], ast.parse(returns).body[0].value, None)


def generated(face):
    """The module's source; its layout is ast's."""
    origin = "Generated from aio.py by tests/client/generate_faces.py: change it there."
    parts = [f'"""{face.title}\n\n{origin}\n"""']
    parts.append(_IMPORTS.format(imports=face.imports))
    classes = {node.name: node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.ClassDef)}
    for name, core in CLIENTS.items():
        parts.append(_HEAD.format(name=name, core=core))
        for method in filter(is_call, classes[name].body):
            text = ast.unparse(ast.fix_missing_locations(_translated(method, face)))
            parts.append("\n" + _indented(text))
    return "\n".join(parts) + "\n"


def _indented(text):
    """The lines in a class's body; those of a docstring stand where they stood in the source."""
    found, is_text = [], False
    for line in text.splitlines():
        found.append(line if is_text or not line else "    " + line)
        is_text ^= line.count('"""') % 2 == 1
    return "\n".join(found)


if __name__ == "__main__":
    for each in FACES:
        each.path.write_text(generated(each))
