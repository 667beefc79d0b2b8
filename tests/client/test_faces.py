"""The three faces have the same calls: those of Twisted and of plain sockets are generated from asyncio's."""

import ast

import pytest

from mqbroker.client import aio
from tests.client.generate_faces import CLIENTS, FACES, generated


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_the_calls_are_those_of_the_asyncio_face(face):
    written, wanted = (ast.dump(ast.parse(text)) for text in (face.path.read_text(), generated(face)))
    assert written == wanted, "write it anew: python -m tests.client.generate_faces, then ruff format"


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
@pytest.mark.parametrize("client", [*CLIENTS, "PushConsumer"])
def test_no_face_lacks_a_public_name(face, client):
    module = __import__(f"mqbroker.client.{face.name}", fromlist=[client])
    names = {name for name in dir(getattr(aio, client)) if not name.startswith("_")}
    only_aio = {"is_calling", "check_startable"}
    assert names - only_aio <= set(dir(getattr(module, client)))
