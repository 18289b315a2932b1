from pathlib import Path

import pytest
from rollout_control_server.ledger import SqliteLedger
from rollout_control_server.ledger.conformance import SharedLedgerConformance
from two_process_ledger import TwoProcessLedger


class TestSqliteLedger(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ledger.sqlite"

    def open_ledger(self) -> SqliteLedger:
        return SqliteLedger(self.path)


class TestSqliteLedgerInTwoProcesses(SharedLedgerConformance):
    @pytest.fixture(autouse=True)
    def storage(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ledger.sqlite"

    def open_ledger(self) -> TwoProcessLedger:
        return TwoProcessLedger(self.path)
