from rollout_control_server.ledger import MemoryLedger
from rollout_control_server.ledger.conformance import CaptureLedgerConformance


class TestMemoryLedger(CaptureLedgerConformance):
    def open_ledger(self) -> MemoryLedger:
        return MemoryLedger()
