"""Copying the rollouts of a ledger to another ledger, and to and from a file of JSON lines."""

from rollout_control_server.copying.copier import CopyCounts, MixedLedgersError, copy_rollouts
from rollout_control_server.copying.export_file import ExportFile, write_export_file
from rollout_control_server.copying.journal import CopyJournal
from rollout_control_server.copying.sources import CopySource, FoundRollout, LedgerSource
from rollout_control_server.copying.verifying import differing_rollouts

__all__ = [
    "CopyCounts",
    "CopyJournal",
    "CopySource",
    "ExportFile",
    "FoundRollout",
    "LedgerSource",
    "MixedLedgersError",
    "copy_rollouts",
    "differing_rollouts",
    "write_export_file",
]
