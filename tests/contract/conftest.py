import asyncio
from collections.abc import Callable, Iterator

import pytest
from rollout_control_check.recorder import Recorder, Row
from rollout_control_server import CaptureLedger, MemoryLedger, create_app
from rollout_control_server.record_rows import record_rows
from served import TOKEN, serving


@pytest.fixture(scope="session")
def recorder_of() -> Callable[[CaptureLedger], Recorder]:
    """Makes what records rows in a ledger of this process."""

    def recorder(ledger: CaptureLedger) -> Recorder:
        def record(rollout_id: str, rows: list[Row]) -> None:
            asyncio.run(record_rows(ledger, rollout_id, rows))

        return record

    return recorder


@pytest.fixture
def correct_server(recorder_of: Callable[[CaptureLedger], Recorder]) -> Iterator[tuple[str, Recorder]]:
    """Ours: its base URL, and what records rows in its ledger."""
    ledger = MemoryLedger()
    with serving(create_app(ledger, TOKEN)) as base_url:
        yield base_url, recorder_of(ledger)
