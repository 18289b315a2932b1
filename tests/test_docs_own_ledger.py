"""What docs/own-ledger.md tells the author of a ledger is run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rollout_control_server import CaptureLedger
from served import TOKEN, controlled

DOCUMENT = (Path(__file__).parent.parent / "docs" / "own-ledger.md").read_text()
TEST, CONFTEST, SERVE = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE)

WHOLE = """
from rollout_control_server.ledger import SqliteLedger

class MyLedger(SqliteLedger):
    pass
"""
WITHOUT_FENCES = f"""
{WHOLE}
    async def _retire(self, rollout_ids):
        return await self._delete(rollout_ids)
"""


def run_suite(folder: Path, ledger: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_ledger.py").write_text(ledger)
    (folder / "test_my_ledger.py").write_text(TEST)
    (folder / "conftest.py").write_text(CONFTEST)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def passed(ended: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^PASSED .*::(\w+)", ended.stdout, flags=re.MULTILINE))


def failed(ended: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^FAILED .*::(\w+)", ended.stdout, flags=re.MULTILINE))


def test_the_suite_passes_a_whole_ledger_and_no_other(tmp_path: Path) -> None:
    assert len([line for line in TEST.splitlines() if line]) <= 10
    whole = run_suite(tmp_path, WHOLE)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert {"test_retire_fences_and_removes", "test_everything_is_there_when_it_is_opened_again"} <= passed(whole)
    broken = run_suite(tmp_path, WITHOUT_FENCES)
    assert broken.returncode == 1
    assert {"test_retire_fences_and_removes", "test_a_late_write_is_discarded_with_a_warning"} <= failed(broken)
    assert "test_strings_come_back_as_they_were" in passed(broken)


def test_the_table_names_what_a_ledger_must_have() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, flags=re.MULTILINE))
    assert named == CaptureLedger.__abstractmethods__


def test_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_ledger.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(SERVE.replace('"TOKEN"', repr(TOKEN)), "own-ledger.md", "exec"), names)
    with controlled(None, names["app"]) as control:
        assert control.remove("retire", "r").json() == {"removed": [], "absent": ["r"]}
        assert control.get_manifest("r").status_code == 410
