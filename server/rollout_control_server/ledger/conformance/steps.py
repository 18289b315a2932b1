"""What the tests of the conformance suite are made of."""

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from rollout_control_spec import RolloutRetiredError

from rollout_control_server.ledger.base import CaptureLedger
from rollout_control_server.records import CaptureCommit, RolloutManifest


class OtherText(str):
    """A string of another type, which not every backend can store."""

    __slots__ = ()


class OpensLedger(abc.ABC):
    """What each part of the suite needs to know of the ledger."""

    @abc.abstractmethod
    def open_ledger(self) -> AbstractAsyncContextManager[CaptureLedger]:
        """Opens the ledger under test: empty on the first call within one test.

        It is called within a running event loop. Every ledger of ours is its own context manager.
        """


def ledger_test(test: Callable[[Any, CaptureLedger], Awaitable[None]]) -> Callable[[Any], None]:
    """Makes a plain test method of a coroutine method that takes an open, empty ledger."""

    def run_test(self: Any) -> None:
        async def on_open_ledger() -> None:
            async with self.open_ledger() as ledger:
                await test(self, ledger)

        asyncio.run(on_open_ledger())

    # Not functools.wraps: pytest would look for a fixture for the coroutine's argument.
    run_test.__name__ = test.__name__
    run_test.__qualname__ = test.__qualname__
    run_test.__doc__ = test.__doc__
    return run_test


async def read_manifest(ledger: CaptureLedger, rollout_id: str) -> RolloutManifest:
    """Returns the rollout's manifest, checked against the schema; a ledger may give JSON or plain objects."""
    manifest: object = await ledger.manifest(rollout_id)
    text = manifest if isinstance(manifest, bytes) else msgspec.json.encode(manifest)
    return msgspec.json.decode(text, type=RolloutManifest)


async def call_ids(ledger: CaptureLedger, rollout_id: str) -> list[str]:
    """Returns the ids of the rollout's committed calls, in the manifest's order."""
    return [record.model_call_id for record in (await read_manifest(ledger, rollout_id)).records]


async def failures(ledger: CaptureLedger, rollout_id: str) -> list[tuple[str, str]]:
    """Returns the rollout's failure rows as call id and reason, in the manifest's order."""
    return [(row.model_call_id, row.reason) for row in (await read_manifest(ledger, rollout_id)).failures]


async def record_all(ledger: CaptureLedger, commits: Sequence[CaptureCommit]) -> None:
    """Records the commits one after the other, and sees that each is kept."""
    for commit in commits:
        assert await ledger.record(commit) is True


class WarningLines(logging.Handler):
    """Collects what is logged as a warning or worse, while it is used as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line."""
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger().addHandler(self)
        return self.lines

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self)


async def assert_retired(ledger: CaptureLedger, rollout_id: str) -> None:
    """Sees that every reading of the rollout says that it is retired."""
    with pytest.raises(RolloutRetiredError):
        await ledger.manifest(rollout_id)
    with pytest.raises(RolloutRetiredError):
        await ledger.has_rows(rollout_id)
    with pytest.raises(RolloutRetiredError):
        await ledger.find_parent(rollout_id, "f", 2)


async def assert_empty(ledger: CaptureLedger, rollout_id: str) -> None:
    """Sees that the rollout has no rows and no fence."""
    assert await ledger.has_rows(rollout_id) is False
    manifest = await read_manifest(ledger, rollout_id)
    assert manifest == RolloutManifest(rollout_id=rollout_id, records=[], failures=[])


ODD_STRINGS = (
    "\x00",
    "a\x00b",
    "\n",
    '"\\/',
    "\u2028",
    "é日本🦜",
    "\uffff",
    " ",
    "'; DROP TABLE x; --",
    "%s%n",
    "x" * 100_000,
)
"""Strings that some storage or encoding spoils: NUL, quotes, separators, planes beyond the first, length."""

BAD_IDS = ("", ".", "..", "a/b", "a b", "r1\n", "\x00", "é", "a" * 256, "a" * 70_000, "r\u0131", "\ud800")
"""Strings that are no rollout id."""
