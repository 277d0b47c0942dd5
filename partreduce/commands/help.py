"""`partreduce help`: tables of the keys of `--set` and `--max`."""

from enum import StrEnum
from typing import Annotated

import typer

from partreduce.commands.options import LIMIT_KEYS, SETTING_KEYS

Topic = StrEnum("Topic", ["settings", "limits"])


def command(
    topic: Annotated[Topic, typer.Argument(help="settings: keys of --set; limits: keys of --max.")] = Topic.settings,
) -> None:
    """List the keys that `--set` or `design --max` takes, with an example and the meaning of each."""
    option, rows = ("--set", SETTING_KEYS) if topic is Topic.settings else ("--max", LIMIT_KEYS)
    width = max(len(example) for example, _ in rows)
    for example, meaning in rows:
        typer.echo(f"{option} {example:{width}}  {meaning}")
