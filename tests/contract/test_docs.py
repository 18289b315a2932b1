"""The document of the check: what it tells people to run is run."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from click import Command
from rollout_control_check import recorder
from rollout_control_check.requirements import requirements, violations
from rollout_control_console.cli import rollout_control
from rollout_control_spec import openapi_yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCHEMAS: dict[str, Any] = yaml.safe_load(openapi_yaml())["components"]["schemas"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    documented = set(re.findall(r"--[a-z][a-z-]+", (DOCS / "check.md").read_text().partition("## In the CI")[0]))
    command: Command = rollout_control.commands["check"]
    assert documented == {option for parameter in command.params for option in parameter.opts if option[:2] == "--"}


def objects_in(document: Any) -> list[tuple[str, Any]]:
    """Returns the objects of the protocol in an example of JSON, each with its schema.

    What the check hands a record command is no object of the protocol itself: its records and failures are.
    """
    if set(document) == {"rollout_id", "rows"}:
        records = [("CallRecord", row["record"]) for row in document["rows"] if "record" in row]
        failures = [row["failure"] for row in document["rows"] if "failure" in row]
        # The ledger adds the version to a failure.
        return [*records, *(("CallFailure", {"schema_version": 2, **failure}) for failure in failures)]
    (name,) = (name for name, schema in SCHEMAS.items() if set(schema.get("properties", ())) == set(document))
    return [(name, document)]


def test_every_example_of_json_in_the_docs_is_valid_by_the_spec() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    examples = [json.loads(block) for page in pages for block in blocks(page, "json")]
    objects = [found for document in examples for found in objects_in(document)]
    assert objects
    for name, document in objects:
        assert [violation.message for violation in violations(document, name)] == []


def test_the_record_protocol_is_told_alike() -> None:
    (told,) = (json.loads(block) for block in blocks(DOCS / "check.md", "json"))
    assert set(told) == {"rollout_id", "rows"}
    assert {name for row in told["rows"] for name in row} == {"record", "staging_chain", "failure"}
    for name in ("rollout_id", "rows", "record", "staging_chain", "failure", "model_call_id", "reason"):
        assert name in (recorder.__doc__ or "")


def test_the_workflow_runs(tmp_path: Path) -> None:
    """Its steps, run one after the other by bash, as the runner does; but the wheel is installed already."""
    (workflow,) = (yaml.safe_load(block) for block in blocks(DOCS / "check.md", "yaml"))
    job = workflow["jobs"]["check"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    scripts = {step["name"]: step["run"].replace("8080", str(port)) for step in job["steps"] if "run" in step}
    assert list(scripts) == ["Install", "Start the server", "Check it"]
    assert scripts["Install"] == "pip install './rollout-control[server,check]'"
    bash = shutil.which("bash")
    assert bash is not None
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (
        ("python", ""),
        ("rollout-control", "-m rollout_control_console"),
        ("curl", '-c "$READY"'),
    ):
        program = programs / name
        program.write_text(f'#!{bash}\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    ready = (
        "import sys, time, urllib.request\n"
        "for _ in range(300):\n"
        "    try: sys.exit(urllib.request.urlopen(sys.argv[-1]).status != 200)\n"
        "    except OSError: time.sleep(0.1)\n"
        "sys.exit(1)"
    )
    done = subprocess.run(
        [bash, "-e", "-c", 'trap "kill %1; wait" EXIT\n' + scripts["Start the server"] + scripts["Check it"]],
        cwd=tmp_path,
        env={
            **os.environ,
            **job["env"],
            "RUNNER_TEMP": str(tmp_path),
            "READY": ready,
            "no_proxy": "*",
            "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "rollout-control.json").read_text())
    assert report["counts"]["broken"] == 0
    assert report["counts"]["not checked"] == 1


def test_the_sample_report_is_one_of_this_check() -> None:
    sample = (DOCS / "check-of-gym-0.7.0.txt").read_text()
    listed = re.findall(r"^(?:holds|broken|not checked) +([a-z-]+\.[a-z-]+)", sample, flags=re.MULTILINE)
    assert listed == list(requirements())
