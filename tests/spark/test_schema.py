"""The choice of columns by a user's schema."""

import pytest

from mqbroker.spark.errors import BadSchema
from mqbroker.spark.schema import COLUMNS, choose_columns, default_ddl


def test_the_default_has_all_columns_and_the_identity_is_not_null() -> None:
    assert default_ddl().startswith(
        "topic string NOT NULL, brokerName string NOT NULL, queueId int NOT NULL, queueOffset bigint NOT NULL, "
        "commitLogOffset bigint, "
    )
    assert default_ddl().count(", ") == len(COLUMNS) - 1


def test_any_columns_in_any_order_and_case() -> None:
    fields = [("BODY", "binary", True), ("queueid", "int", False), ("tags", "string", True)]
    assert choose_columns(fields) == ("body", "queueId", "tags")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("tag", "string", True), "column tag: messages have no such column; did you mean tags"),
        (("zzz", "string", True), "column zzz: messages have no such column; All columns: topic string, brokerName"),
        (("body", "string", True), "column body: its type is binary, not string; read it as it is, and cast"),
        (("tags", "string", False), "column tags: not every message has a value; leave NOT NULL out"),
        (("Body", "binary", True), "column Body: appears twice"),
    ],
)
def test_a_mistake_is_named(field: tuple[str, str, bool], message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        choose_columns([("body", "binary", True), field] if field[0] != "body" else [field])


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(BadSchema, match="no column"):
        choose_columns([])
