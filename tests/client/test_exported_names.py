"""What the package exports, and what it brings along."""

import subprocess
import sys

import rollout_control_client


def test_every_public_name_is_exported_and_nothing_else() -> None:
    public = {
        name
        for name, value in vars(rollout_control_client).items()
        if (not name.startswith("_") or name == "__version__") and not isinstance(value, type(sys))
    }

    assert public == set(rollout_control_client.__all__)


def test_the_export_list_is_sorted_and_has_no_repetition() -> None:
    names = rollout_control_client.__all__

    assert len(set(names)) == len(names)
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names


def test_the_shared_names_are_those_of_the_spec() -> None:
    import rollout_control_spec

    for name in ("CONTROL_ROUTE_PREFIX", "MAX_LEDGER_BATCH", "RolloutControlError", "RolloutRetiredError"):
        assert getattr(rollout_control_client, name) is getattr(rollout_control_spec, name)


def test_importing_the_client_brings_nothing_of_the_server() -> None:
    program = "import sys, rollout_control_client; print(*{name.partition('.')[0] for name in sys.modules})"

    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()

    assert "httpx" in imported
    assert not {"attrs", "dateutil", "litestar", "pydantic", "rollout_control_server", "uvicorn"} & set(imported)
