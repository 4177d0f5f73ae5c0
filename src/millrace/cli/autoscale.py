"""`millrace autoscale`: what autoscaling sees and does, and what another policy would have done.

All but `--on` and `--off` only read: the location's records, or a file of them.
"""

from __future__ import annotations

import json as json_
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from millrace.cli.failures import Failure, explained
from millrace.cli.reconfigure import JSON, TIMEOUT, ask
from millrace.log import Journal, open_store
from millrace.reconfigure.autoscale import scaler
from millrace.reconfigure.autoscale.deciding import decide
from millrace.reconfigure.autoscale.history import Decision, History
from millrace.reconfigure.autoscale.observing import Observation
from millrace.reconfigure.autoscale.recording import Records, lines_of, read_lines, replay
from millrace.reconfigure.autoscale.settings import POLICIES, Settings

OVERRIDES: list[Callable[[Any], Any]] = [
    click.option("--policy", type=click.Choice(POLICIES), help="Another policy."),
    click.option("--min", "min_", type=int, help="Another fewest number of shards."),
    click.option("--max", "max_", type=int, help="Another most number of shards."),
    click.option("--target", type=float, help="Another target, such as 0.7."),
    click.option("--latency", type=float, help="Another latency, in seconds."),
]


def _overrides(command: Any) -> Any:
    for option in reversed(OVERRIDES):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  millrace autoscale /data/totals
  millrace autoscale /data/totals --dry-run --max 32
  millrace autoscale /data/totals --off
  millrace autoscale /data/totals --record monday.jsonl
  millrace autoscale --replay monday.jsonl --policy threshold
"""
)
@click.argument("location", required=False)
@click.option("--explain", "mode", flag_value="explain", help="What it sees and did, and why.")
@click.option(
    "--dry-run", "mode", flag_value="dry-run", help="What it would do now; changes nothing."
)
@click.option("--off", "mode", flag_value="off", help="Leave the running query at its size.")
@click.option("--on", "mode", flag_value="on", help="Let the running query be scaled again.")
@click.option(
    "--record", type=click.Path(dir_okay=False), help="Write what was seen to a file, for --replay."
)
@click.option(
    "--replay",
    "replayed",
    type=click.Path(exists=True, dir_okay=False),
    help="Run the epochs of such a file through the policy.",
)
@_overrides
@TIMEOUT
@JSON
def autoscale(
    location: str | None,
    mode: str | None,
    record: str | None,
    replayed: str | None,
    timeout: float,
    as_json: bool,
    **changes: Any,
) -> None:
    """Show, switch or replay the autoscaling of a query."""
    if (location is None) == (replayed is None):
        raise click.UsageError("give a LOCATION, or --replay FILE")
    if replayed is not None:
        _replay(Path(replayed), changes, as_json)
        return
    assert location is not None
    if mode in ("on", "off"):
        ask(location, "autoscale", {"switch": mode}, timeout=timeout, as_json=as_json)
        return
    with explained():
        records = Records(Journal.open(open_store(location)).store)
        seen = records.seen()
        if not seen:
            raise Failure(
                f"{location} has no records of autoscaling. Either its query was started without "
                f"autoscale=, or it has run for fewer than {scaler.CHUNK} epochs."
            )
        settings = _changed(seen[-1].settings, changes)
        observations = [o for part in seen for o in part.observations]
        decisions = records.decisions()
    if record is not None:
        Path(record).write_text("".join(f"{line}\n" for line in lines_of(observations)))
        click.echo(f"wrote {len(observations)} epochs to {record}")
        return
    decision = decide(settings, _history(observations))
    if mode == "dry-run":
        click.echo(json_.dumps(decision.to_json()) if as_json else _line(decision))
        return
    scaling = scaler.Scaling(settings, settings.act, observations[-1], decision, tuple(decisions))
    if as_json:
        body = {
            "settings": settings.to_json(),
            "seen": observations[-1].to_json(),
            "now": decision.to_json(),
            "decisions": [d.to_json() for d in decisions],
        }
        click.echo(json_.dumps(body))
    else:
        click.echo("\n".join(scaler.explained(scaling)))


def _replay(path: Path, changes: dict[str, Any], as_json: bool) -> None:
    with explained():
        observations = read_lines(path.read_text().splitlines(), str(path))
        settings = _changed(Settings(), changes)
        decisions = list(replay(observations, settings))
    if as_json:
        click.echo(json_.dumps([d.to_json() for d in decisions]))
        return
    told: Decision | None = None
    for decision in decisions:
        if decision.acts and (told is None or told.parallelism != decision.parallelism):
            click.echo(_line(decision))
            told = decision
    wanted = [d.wanted for d in decisions]
    click.echo(
        f"{len(observations)} epochs, {len(decisions)} decisions by {settings.policy}: "
        f"{min(wanted)} to {max(wanted)} shards wanted, {sum(wanted) / len(wanted):.1f} on average"
    )


def _history(observations: Sequence[Observation]) -> History:
    history = History()
    for observation in observations:
        history = history.add(observation)
    return history


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    given = {name.rstrip("_"): value for name, value in changes.items() if value is not None}
    if given.get("policy", settings.policy) != "schedule":
        given["schedule"] = ()
    return replace(settings, **given)


def _line(decision: Decision) -> str:
    advice = "".join(f"\n  advice: {line}" for line in decision.advice)
    return f"epoch {decision.epoch}: {decision.action}, {decision.reason}{advice}"
