"""Each contract of import-linter in pyproject.toml reports an import that breaks it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("spec", "server", "generated_client")

SPEC = "spec/rollout_control_spec"
CHECK = "spec/rollout_control_check"
CLIENT = "generated_client/rollout_control_client"
SERVER = "server/rollout_control_server"
CONSOLE = "server/rollout_control_console"

ROOMS_CONTRACT = "console -> server, check, client -> spec"
SERVER_CONTRACT = "The server's modules import downwards"

VIOLATIONS = [
    (ROOMS_CONTRACT, f"{SPEC}/samples.py", "import rollout_control_check"),
    (ROOMS_CONTRACT, f"{SPEC}/samples.py", "import rollout_control_client"),
    (ROOMS_CONTRACT, f"{CHECK}/wire.py", "import rollout_control_server.errors"),
    (ROOMS_CONTRACT, f"{CHECK}/wire.py", "import rollout_control_client"),
    (ROOMS_CONTRACT, f"{CLIENT}/errors.py", "import rollout_control_server.errors"),
    (ROOMS_CONTRACT, f"{CLIENT}/errors.py", "import rollout_control_check"),
    (ROOMS_CONTRACT, f"{SERVER}/operations.py", "import rollout_control_client"),
    (ROOMS_CONTRACT, f"{SERVER}/operations.py", "import rollout_control_check"),
    *(
        (ROOMS_CONTRACT, f"{package}/__init__.py", "import rollout_control_console.cli")
        for package in (SPEC, CHECK, CLIENT, SERVER)
    ),
    (SERVER_CONTRACT, f"{SERVER}/records.py", "import rollout_control_server.errors"),
    (SERVER_CONTRACT, f"{SERVER}/errors.py", "import rollout_control_server.asgi"),
    (SERVER_CONTRACT, f"{SERVER}/records.py", "import rollout_control_server.samples"),
    (SERVER_CONTRACT, f"{SERVER}/ledger/base.py", "import rollout_control_server.problems"),
    (SERVER_CONTRACT, f"{SERVER}/app.py", "import rollout_control_server.gym"),
    ("What serves HTTP knows no backend", f"{SERVER}/operations.py", "import rollout_control_server.ledger.memory"),
    ("What serves HTTP knows no backend", f"{SERVER}/manifests.py", "import rollout_control_server.ledger.postgres"),
    ("What serves HTTP knows no backend", f"{SERVER}/ledger/base.py", "import rollout_control_server.ledger.sqlite"),
    (
        "Backends know nothing of each other",
        f"{SERVER}/ledger/postgres/__init__.py",
        "import rollout_control_server.ledger.sqlite",
    ),
    (
        "Backends know nothing of each other",
        f"{SERVER}/ledger/sqlite/__init__.py",
        "import rollout_control_server.ledger.memory",
    ),
    ("Only the SQLite ledger imports SQLite", f"{SERVER}/ledger/memory.py", "import sqlite3"),
    ("Only the SQLite ledger imports SQLite", f"{CONSOLE}/cli.py", "import apsw"),
    ("Only the PostgreSQL ledger imports its driver", f"{SERVER}/ledger/base.py", "import asyncpg"),
    ("Only the adapter for Gym imports nemo-gym", f"{SERVER}/records.py", "import nemo_gym"),
    ("Client and check need no library of the server's", f"{CLIENT}/errors.py", "import uvicorn"),
    ("Client and check need no library of the server's", f"{CHECK}/wire.py", "import litestar"),
]


def contract_names() -> list[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["name"] for contract in pyproject["tool"]["importlinter"]["contracts"]]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and of pyproject.toml."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def broken_contracts(tree: Path) -> dict[str, str]:
    """Returns what lint-imports says of each contract that is broken."""
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOMS), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = dict(re.findall(r"^(.+?) (KEPT|BROKEN)", ended.stdout, flags=re.MULTILINE))
    assert list(verdicts) == contract_names(), ended.stdout + ended.stderr
    broken = [name for name, verdict in verdicts.items() if verdict == "BROKEN"]
    assert ended.returncode == bool(broken)
    return {name: ended.stdout.rpartition(f"\n{name}\n---")[2].partition("\n---")[0] for name in broken}


def test_the_packages_keep_all_of_them(tree: Path) -> None:
    assert broken_contracts(tree) == {}


@pytest.mark.parametrize(("contract", "path", "line"), VIOLATIONS)
def test_an_import_in_a_forbidden_direction_is_reported(tree: Path, contract: str, path: str, line: str) -> None:
    module = tree / path
    text = module.read_text()
    module.write_text(f"{text}\n{line}\n")
    try:
        broken = broken_contracts(tree)
    finally:
        module.write_text(text)
    importer = path.partition("/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    imported = line.removeprefix("import ")
    assert re.search(rf"{re.escape(importer)} +-> +{re.escape(imported)}\b", broken[contract]), broken


def test_every_contract_has_a_violation_here() -> None:
    assert {contract for contract, _, _ in VIOLATIONS} == set(contract_names())


def test_a_new_module_of_the_server_has_to_be_given_its_place(tree: Path) -> None:
    module = tree / SERVER / "new_module.py"
    module.write_text('"""A module that the layers do not name."""\n')
    try:
        assert "new_module" in broken_contracts(tree)[SERVER_CONTRACT]
    finally:
        module.unlink()
