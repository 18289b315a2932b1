"""CONTRIBUTING names what there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DRAWING = CONTRIBUTING.partition("```text\n")[2].partition("```")[0]


def test_the_drawing_shows_each_module_of_the_server() -> None:
    drawn = DRAWING.partition("  rollout_control_server/\n")[2].partition("  rollout_control_console/")[0]
    of_ledger, of_server = (
        {path.name for path in folder.glob("*.py") if not path.name.startswith("_")}
        for folder in (ROOT / "server/rollout_control_server/ledger", ROOT / "server/rollout_control_server")
    )
    named = set(re.findall(r"\w+\.py\b", drawn))
    assert of_server <= named
    assert named <= of_server | of_ledger


def test_the_drawing_shows_each_package() -> None:
    typed = [path for room in ("spec", "server", "generated_client") for path in (ROOT / room).glob("*/py.typed")]
    packages = {path.parent.name for path in typed}
    assert set(re.findall(r"^  (rollout_control_\w+)/", DRAWING, flags=re.MULTILINE)) == packages
    assert len(packages) == 5


def test_every_path_that_it_names_is_there() -> None:
    paths = re.findall(r"`([\w./-]+/[\w.-]*)`", CONTRIBUTING)
    paths = [path for path in paths if not path.endswith("RESULTS.md")]  # a session writes it
    assert len(paths) > 10
    inside = (ROOT, ROOT / "server/rollout_control_server", ROOT / "generated_client/rollout_control_client")
    assert [path for path in paths if not any((folder / path).exists() for folder in inside)] == []


def test_the_sessions_that_it_names_are_there() -> None:
    noxfile = (ROOT / "noxfile.py").read_text()
    sessions = re.findall(r'name="([\w-]+)"', noxfile) + re.findall(r"^def (\w+)\(session", noxfile, flags=re.MULTILINE)
    named = re.findall(r"^\| `nox -s ([\w-]+)`", CONTRIBUTING, flags=re.MULTILINE)
    assert len(named) > 10
    assert set(named) <= set(sessions)
