"""What a Kafka source was told, from the options it was made with."""

from __future__ import annotations

import pytest

from millrace.spark.kafka_sources import KafkaSource, declared


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "a, b,,c"}, ("a", "b", "c")),
        ({"SUBSCRIBE": "a"}, ("a",)),
        ({"assign": '{"a": [0, 1], "b": [2]}'}, ("a", "b")),
        ({"assign": "no JSON"}, ()),
        ({"subscribePattern": "a.*"}, ()),
    ],
)
def test_topics(options: dict[str, str], topics: tuple[str, ...]) -> None:
    found = declared({"kafka.bootstrap.servers": "one:9092", **options})
    assert found == KafkaSource(topics, {"bootstrap.servers": "one:9092"})
    assert found.servers == "one:9092"


def test_only_options_of_the_client_are_handed_on() -> None:
    given = {
        "kafka.bootstrap.servers": "one:9092",
        "kafka.security.protocol": "SSL",
        "maxOffsetsPerTrigger": "5",
        "subscribe": "kafka.topic",
    }
    assert dict(declared(given).client) == {
        "bootstrap.servers": "one:9092",
        "security.protocol": "SSL",
    }
