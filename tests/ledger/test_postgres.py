"""PostgresLedger keeps the promises that all ledgers share."""

import pytest
from rollout_control_server.ledger import CaptureLedger, open_ledger
from rollout_control_server.ledger.conformance import SharedLedgerConformance


class TestPostgresLedger(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, postgres_url: str) -> None:
        self.url = postgres_url

    def open_ledger(self) -> CaptureLedger:
        return open_ledger(self.url)
