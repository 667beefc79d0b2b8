"""The three faces have the same calls with the same arguments: those of their cores."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqbroker.client import aio, blocking, deferred

CLIENTS = ["Producer", "PullConsumer", "PushConsumer", "TransactionProducer", "LitePullConsumer"]
#: For threads, where the other faces have coroutines and Deferreds; they have tests of their own.
FOR_THREADS = {"send_async", "fetch_ahead"}
#: Fixtures of the contract, and the clients that they are.
FIXTURES = {"producer": "Producer", "consumer": "PullConsumer"}


@pytest.mark.parametrize("face", [deferred, blocking])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_face_lacks_a_public_name(face: Any, client: Any) -> None:
    assert public_names(face, client) - FOR_THREADS == public_names(aio, client)


def public_names(face: Any, client: str) -> set[str]:
    return {name for name in dir(getattr(face, client)) if not name.startswith("_")}


def contract_calls() -> set[tuple[str, str]]:
    """Which names of which clients the tests of all faces may use: a test that has several clients counts for all."""
    found: set[tuple[str, str]] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        module = ast.parse(path.read_text()).body
        lists = {each.targets[0].id: texts(each) for each in module if is_named(each)}  # type: ignore[attr-defined]
        functions = [each for each in module if isinstance(each, ast.FunctionDef)]
        helpers = {each.name: clients_of(each, lists) for each in functions}
        for function in functions:
            used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} | arguments(function)
            clients = clients_of(function, lists).union(*(helpers.get(name, set()) for name in used))
            attributes = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
            found |= {(client, name) for client in clients for name in attributes}
    return found


def clients_of(function: ast.FunctionDef, lists: dict[str, set[str]]) -> set[str]:
    """The clients that a function makes on each face, or has as fixtures; `lists` are the module's, by their names."""
    made = {FIXTURES[name] for name in arguments(function) & FIXTURES.keys()}
    if "face" in arguments(function):
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        made |= set(CLIENTS) & texts(function).union(*(lists[name] for name in names & lists.keys()))
    return made


def is_named(node: Any) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def texts(node: ast.AST) -> set[Any]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def arguments(function: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in function.args.args}


def test_each_public_name_is_in_a_test_of_all_faces() -> None:
    calls = contract_calls()
    assert len(calls) > 100
    wanted = {(client, name) for client in CLIENTS for name in public_names(blocking, client) - FOR_THREADS}
    # Those of any producer are tested with one.
    wanted -= {("TransactionProducer", name) for name in public_names(blocking, "Producer")}
    assert [f"{client}.{name}" for client, name in sorted(wanted - calls)] == []


@pytest.mark.parametrize("face", [deferred, blocking])
@pytest.mark.parametrize("client", CLIENTS)
def test_calls_take_the_same_and_say_what_they_do(face: Any, client: Any) -> None:
    theirs = inspect.getmembers(getattr(face, client), inspect.isfunction)
    for name, method in theirs:
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            ours = getattr(getattr(aio, client), name, None)
            if ours is not None:
                assert list(inspect.signature(method).parameters) == list(inspect.signature(ours).parameters), name


def test_nothing_of_twisted_is_imported() -> None:
    code = "import sys, mqbroker.client.blocking, mqbroker.client.aio; print('twisted' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
