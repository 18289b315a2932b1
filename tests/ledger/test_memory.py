import pytest
from rollout_control_server.ledger import MemoryLedger, open_ledger
from rollout_control_server.ledger.conformance import CaptureLedgerConformance


class TestMemoryLedger(CaptureLedgerConformance):
    def open_ledger(self) -> MemoryLedger:
        return MemoryLedger()


@pytest.mark.parametrize("url", ["memory://name", "memory:", "memory://?size=9"])
def test_a_ledger_in_memory_has_no_name_and_no_options(url: str) -> None:
    with pytest.raises(ValueError, match="memory:// alone"):
        open_ledger(url)
