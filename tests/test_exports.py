"""The names that users import, and what importing them costs."""

import importlib
import subprocess
import sys
from operator import attrgetter

import pytest

EXPORTS = {
    "rollout_control_spec": [
        "AUTH_TOKEN_VARIABLE",
        "BODY_LIMIT",
        "CONTROL_ROUTE_PREFIX",
        "LEDGER_VARIABLE",
        "MANIFEST_SCHEMA_VERSION",
        "MAX_INT",
        "MAX_LEDGER_BATCH",
        "MAX_PAGE",
        "MAX_ROLLOUT_ID_LENGTH",
        "REQUEST_ID_HEADER",
        "URL_VARIABLE",
        "RolloutControlError",
        "RolloutRetiredError",
        "openapi_yaml",
        "unique_rollout_ids",
        "validate_auth_token",
        "validate_rollout_id",
        "validate_rollout_id_prefix",
    ],
    # The names of the seed's module, and no others.
    "rollout_control_server.control_routes": [
        "CONTROL_ROUTE_PREFIX",
        "MAX_LEDGER_BATCH",
        "LedgerBatchRequest",
        "RolloutControlClient",
        "install_rollout_control_routes",
    ],
}


@pytest.mark.parametrize("name", ["rollout_control_spec", "rollout_control_server", "rollout_control_client"])
def test_every_exported_name_is_there(name: str) -> None:
    package = importlib.import_module(name)
    exported = package.__all__
    assert sorted(set(exported)) == sorted(exported)
    for public in exported:
        assert getattr(package, public) is not None


@pytest.mark.parametrize("name", EXPORTS)
def test_the_names_are_these(name: str) -> None:
    assert importlib.import_module(name).__all__ == EXPORTS[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("rollout_control_server", "rollout_control_server.control_routes"):
        with pytest.raises(AttributeError, match="no_such_name"):
            attrgetter("no_such_name")(importlib.import_module(name))


def modules_after(statement: str) -> set[str]:
    """Returns the top-level modules that a new interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


def test_the_client_imports_nothing_of_the_server() -> None:
    loaded = modules_after("import rollout_control_client")
    assert not loaded & {"rollout_control_server", "litestar", "uvicorn", "asyncpg"}


def test_a_writer_of_ledgers_imports_no_web_framework_and_no_client() -> None:
    loaded = modules_after("from rollout_control_server import MemoryLedger, CaptureCommit, open_ledger")
    assert not loaded & {"litestar", "uvicorn", "httpx", "rollout_control_client", "asyncpg"}


def test_the_routes_do_not_load_the_client_until_it_is_asked_for() -> None:
    loaded = modules_after("import rollout_control_server.control_routes")
    assert "rollout_control_client" not in loaded
    loaded = modules_after("from rollout_control_server.control_routes import RolloutControlClient")
    assert "rollout_control_client" in loaded


def test_the_routes_load_no_framework_but_the_hosts() -> None:
    install = (
        "from starlette.applications import Starlette\n"
        "from rollout_control_server import MemoryLedger, install_rollout_control_routes\n"
        "install_rollout_control_routes(Starlette(), MemoryLedger(), 'TOKEN')"
    )
    assert not modules_after(install) & {"litestar", "uvicorn", "fastapi"}


def test_the_spec_needs_the_standard_library_only() -> None:
    extra = modules_after("import rollout_control_spec") - modules_after("") - set(sys.stdlib_module_names)
    assert extra == {"rollout_control_spec"}
