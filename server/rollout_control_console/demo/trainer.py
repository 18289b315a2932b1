"""The demo's trainer: reads, retires and deletes over HTTP, and compares each result with the contract."""

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rollout_control_client import RolloutControlClient
from rollout_control_server.ledger import shown_ledger_url
from rollout_control_server.records import RolloutManifest
from rollout_control_spec import AUTH_TOKEN_VARIABLE, RolloutControlError, RolloutRetiredError

from rollout_control_console.demo import model_server
from rollout_control_console.demo.rollouts import DemoRollout, demo_rollout

__all__ = ["run_demo"]

ROLLOUTS_A_COMMAND: Final = 20
REQUEST_TIMEOUT_S: Final = 30.0


@dataclass
class Steps:
    """The steps of the demo: what was done, with which result, and whether the contract promises that result."""

    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def add(self, step: str, outcome: str, *, as_promised: bool) -> None:
        """Adds one line to the table."""
        self.rows.append((step, outcome, as_promised))

    @property
    def as_promised(self) -> bool:
        """Whether every step had the result that the contract promises."""
        return all(as_promised for _, _, as_promised in self.rows)

    def table(self) -> Table:
        """Returns the steps as a table to print."""
        table = Table(title="The life of a training step's rollouts", title_justify="left")
        table.add_column("step")
        table.add_column("result")
        table.add_column("as promised", justify="center")
        for step, outcome, as_promised in self.rows:
            table.add_row(step, outcome, "[green]yes[/]" if as_promised else "[bold red]NO[/]")
        return table


class ModelServer:
    """The model server's process, which records rollouts on command and serves their ledgers."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def read_line(self) -> dict[str, Any]:
        """Returns the next line that the process writes.

        Raises:
            RolloutControlError: The process ended instead; what it said is on standard error.
        """
        line = b"" if self._process.stdout is None else await self._process.stdout.readline()
        if not line:
            raise RolloutControlError(f"the demo's model server ended with status {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def run(self, **command: object) -> dict[str, Any]:
        """Has rows recorded, and returns how many the ledger `kept` and `discarded`."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.read_line()


@asynccontextmanager
async def running_model_server(ledger_url: str, run: str, auth_token: str) -> AsyncIterator[ModelServer]:
    """Starts the model server's process, and ends it by closing its standard input."""
    arguments = ("-m", model_server.__name__, ledger_url, run)
    environment = {**os.environ, AUTH_TOKEN_VARIABLE: auth_token}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdin=PIPE,
        stdout=PIPE,
        env=environment,
        # In a group of its own, Ctrl-C does not reach it: the trainer ends it.
        process_group=0,
    )
    try:
        yield ModelServer(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def run_demo(ledger_url: str, rollouts: int) -> int:
    """Runs the demo and prints its progress and its table.

    Args:
        ledger_url: The ledger that the model server writes.
        rollouts: How many rollouts it records.

    Returns:
        The exit status: 0 if every step had the result that the contract promises, else 1.

    Raises:
        RolloutControlError: A process or a request failed, so there is no result to compare.
    """
    console = Console()
    steps = Steps()
    run = f"demo-{secrets.token_hex(4)}"
    auth_token = secrets.token_urlsafe(32)
    expected = {rollout.rollout_id: rollout for rollout in (demo_rollout(run, number) for number in range(rollouts))}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with running_model_server(ledger_url, run, auth_token) as server:
        address = (await server.read_line())["address"]
        console.print(f"A model server's process serves its ledgers ({shown_ledger_url(ledger_url)}) on {address}.")
        async with RolloutControlClient(address, auth_token, REQUEST_TIMEOUT_S) as trainer:
            with Progress(*columns, console=console) as progress:
                await record_all(server, expected, steps, progress)
                await read_all(trainer, expected, steps, progress)
            await retire_all(trainer, server, list(expected), steps)
            await delete_and_reuse(trainer, server, expected, steps)
        await ask_with_another_token(address, next(iter(expected)), steps)
    console.print(steps.table())
    console.print("Everything is as promised." if steps.as_promised else "[bold red]Something is not as promised.[/]")
    return 0 if steps.as_promised else 1


async def record_all(server: ModelServer, expected: dict[str, DemoRollout], steps: Steps, progress: Progress) -> None:
    """The model server records all rollouts."""
    calls = sum(len(rollout.commits) for rollout in expected.values())
    failures = sum(len(rollout.failures) for rollout in expected.values())
    kept = 0
    task = progress.add_task("model server: record rollouts", total=len(expected))
    for first in range(0, len(expected), ROLLOUTS_A_COMMAND):
        last = min(first + ROLLOUTS_A_COMMAND, len(expected))
        kept += (await server.run(record=[first, last]))["kept"]
        progress.update(task, completed=last)
    steps.add(
        f"The model server records {len(expected)} rollouts",
        f"{kept} rows: {calls} calls, {failures} failed captures",
        as_promised=kept == calls + failures,
    )


async def read_all(
    trainer: RolloutControlClient, expected: dict[str, DemoRollout], steps: Steps, progress: Progress
) -> None:
    """The trainer reads all manifests. It would train on those without failures."""
    task = progress.add_task("trainer: read manifests", total=len(expected))
    read = await manifests(trainer, expected, progress, task)
    same = sum(read[rollout_id] == as_builtins(rollout.manifest) for rollout_id, rollout in expected.items())
    incomplete = sum(bool(rollout.failures) for rollout in expected.values())
    steps.add(
        "The trainer reads their manifests",
        f"{same} are row for row what was recorded; {incomplete} have a failure and are left out of training",
        as_promised=same == len(expected),
    )


async def retire_all(trainer: RolloutControlClient, server: ModelServer, ids: list[str], steps: Steps) -> None:
    """The trainer retires all rollouts in one call. Then the model server gets a late write."""
    removal = await trainer.retire(ids)
    steps.add(
        "It retires them in one call",
        f"{len(removal.removed)} removed, {len(removal.absent)} absent",
        as_promised=removal.removed == ids and not removal.absent,
    )
    gone = sum(outcome is None for outcome in (await manifests(trainer, ids)).values())
    steps.add(
        "It asks for the manifests again",
        f"{gone} are answered with 410 (gone)",
        as_promised=gone == len(ids),
    )
    late = await server.run(late=0)
    still_gone = (await manifests(trainer, ids[:1]))[ids[0]] is None
    steps.add(
        "A late write reaches the model server",
        f"{late['discarded']} discarded by the fence",
        as_promised=late == {"kept": 0, "discarded": 1} and still_gone,
    )
    removal = await trainer.retire(ids)
    steps.add(
        "The trainer retires them once more, as a retry does",
        f"{len(removal.removed)} removed, {len(removal.absent)} absent",
        as_promised=removal.absent == ids and not removal.removed,
    )


async def delete_and_reuse(
    trainer: RolloutControlClient, server: ModelServer, expected: dict[str, DemoRollout], steps: Steps
) -> None:
    """The trainer deletes all ledgers and fences. Then the model server uses an id again."""
    ids = list(expected)
    removal = await trainer.delete(ids)
    empty = [as_builtins(RolloutManifest(rollout_id=rollout_id, records=[], failures=[])) for rollout_id in ids]
    read = await manifests(trainer, ids)
    steps.add(
        "It deletes them, which lifts the fences",
        f"{len(removal.absent)} absent; {sum(manifest in empty for manifest in read.values())} manifests are empty",
        as_promised=removal.absent == ids and not removal.removed and [read[rollout_id] for rollout_id in ids] == empty,
    )
    await server.run(late=0)
    again = (await manifests(trainer, ids[:1]))[ids[0]]
    last_call = as_builtins(expected[ids[0]].manifest)["records"][-1:]
    steps.add(
        "An id is used again",
        "its manifest has the new call, and none of the old ones",
        as_promised=again is not None and again["records"] == last_call,
    )
    await trainer.delete(ids)


async def ask_with_another_token(address: str, rollout_id: str, steps: Steps) -> None:
    """Somebody who has another token asks for a manifest."""
    async with RolloutControlClient(address, "not-the-token", REQUEST_TIMEOUT_S) as stranger:
        try:
            await stranger.manifest(rollout_id)
            status = 200
        except RolloutControlError as error:
            status = getattr(error, "status", 0)
    steps.add("A stranger asks, with another token", f"status {status}", as_promised=status == 401)


async def manifests(
    trainer: RolloutControlClient,
    rollout_ids: Iterable[str],
    progress: Progress | None = None,
    task: TaskID | None = None,
) -> dict[str, dict[str, Any] | None]:
    """Returns each rollout's manifest as plain objects, and None for one that is retired."""
    read: dict[str, dict[str, Any] | None] = {}
    async for rollout_id, outcome in trainer.manifests(list(rollout_ids)):
        read[rollout_id] = None if isinstance(outcome, RolloutRetiredError) else as_builtins(outcome)
        if progress is not None and task is not None:
            progress.advance(task)
    return read


def as_builtins(manifest: object) -> dict[str, Any]:
    """Returns a manifest as plain objects, to compare the server's structs with the client's."""
    builtins: dict[str, Any] = msgspec.to_builtins(manifest)
    return builtins
