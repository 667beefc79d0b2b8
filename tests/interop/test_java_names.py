"""The page of Java's names has every public method of Java's clients."""

from __future__ import annotations

import re
import subprocess

from tests.interop.java import JavaSystem
from tests.test_java_names import PAGE

PACKAGE = "org.apache.rocketmq.client"
CLASSES = {
    "All clients: ClientConfig": "ClientConfig",
    "DefaultMQProducer": "producer.DefaultMQProducer",
    "TransactionMQProducer": "producer.TransactionMQProducer",
    "DefaultMQPushConsumer": "consumer.DefaultMQPushConsumer",
    "DefaultMQPullConsumer": "consumer.DefaultMQPullConsumer",
    "DefaultLitePullConsumer": "consumer.DefaultLitePullConsumer",
}


def public_names(java: JavaSystem, name: str) -> set[str]:
    """Its own public methods, setters and getters by their property."""
    command = ["javap", "-public", "-cp", f"{java.cache}/lib/*", f"{PACKAGE}.{name}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    methods = re.findall(r" ([a-z]\w*)\(", said)
    return {re.sub(r"^set([A-Z]+)", lambda found: found[1][:1].lower() + found[1][1:], each) for each in methods}


def properties_read(names: set[str]) -> set[str]:
    return {each for each in names if re.match(r"(get|is)[A-Z]", each)}


def test_each_public_name_of_javas_clients_is_on_the_page(java: JavaSystem) -> None:
    text = PAGE.read_text()
    for title, name in CLASSES.items():
        part = text.partition(f"\n{title}\n-")[2]
        part = re.split(r"\n\S.*\n-{5,}\n", part)[0]
        listed = set(
            re.findall(r"``(\w+)``", "\n".join(re.findall(r"^   \* - .*(?:\n       .*)*", part, re.MULTILINE)))
        )
        names = public_names(java, name)
        assert len(names) > 5
        wanted = names - properties_read(names)
        assert wanted - listed == set(), title
        assert listed - wanted - {"Java"} == set(), title
