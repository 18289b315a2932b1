"""The conformance suite of capture ledgers: the promises of `CaptureLedger`, as tests that a backend inherits.

The author of a ledger writes:

    from rollout_control_server.ledger.conformance import SharedLedgerConformance

    class TestMyLedger(SharedLedgerConformance):
        @pytest.fixture(autouse=True)
        def storage(self, tmp_path):
            self.path = tmp_path / "ledger"

        def open_ledger(self):
            return MyLedger(self.path)

and pytest runs the suite. `CaptureLedgerConformance` is for a ledger that one process has to itself;
`SharedLedgerConformance` adds what holds when several handles use one storage, and when it is opened again. No plugin
is needed: each test runs its own event loop. Needs pytest, which the extra `[check]` brings.

For messages that show values, let pytest rewrite the suite's assertions, in a conftest.py:

    pytest.register_assert_rewrite("rollout_control_server.ledger.conformance")
"""

from rollout_control_server.ledger.conformance.shared_ledger import SharedLedgerConformance
from rollout_control_server.ledger.conformance.single_ledger import CaptureLedgerConformance

__all__ = ["CaptureLedgerConformance", "SharedLedgerConformance"]
