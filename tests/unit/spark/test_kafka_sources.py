"""What a Kafka source was told, from the options it was made with."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import RealTimeError
from millrace.spark import kafka_sources
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


@pytest.mark.parametrize("reads_kafka", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_connector_that_came_after_the_jvms_start_is_refused_in_real_time(
    reads_kafka: bool, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [declared({"kafka.bootstrap.servers": "one:9092", "subscribe": "a"})]
    monkeypatch.setattr(kafka_sources, "_sources", lambda frames: found if reads_kafka else [])
    monkeypatch.setattr(kafka_sources, "is_on_class_path", lambda spark: is_there)
    session: Any = object()
    if reads_kafka and not is_there:
        with pytest.raises(RealTimeError, match=r"this session got it later.*kafka='jars'"):
            kafka_sources.check_real_time(session, [])
    else:
        kafka_sources.check_real_time(session, [])
