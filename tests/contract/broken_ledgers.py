"""Servers that are one line away from ours, and do the wrong thing to the ledgers."""

import unicodedata
from typing import Any, Final

import rollout_control_spec
from one_line_away import (
    Line,
    Reply,
    broken,
    has_status,
    ledger,
    manifest,
    patched,
    records,
    removal,
    replies,
    requests,
    status_is,
)
from rollout_control_server import MemoryLedger, operations
from rollout_control_server.ledger import base as ledger_base
from rollout_control_server.records import RolloutRemoval

ROWS_READ_BACK: Final = ("manifest.records", "manifest.text", "manifest.integers")

RECORD: Final = MemoryLedger._record
RETIRE: Final = MemoryLedger._retire
DELETE: Final = MemoryLedger._delete
MANIFEST: Final = MemoryLedger._manifest
MANIFESTS: Final = MemoryLedger._manifests
REMOVE_ROWS: Final = MemoryLedger._remove_rows
UNIQUE_IDS: Final = rollout_control_spec.unique_rollout_ids


async def read_once(self: MemoryLedger, rollout_id: str) -> bytes:
    answer = await MANIFEST(self, rollout_id)
    self._rollouts.pop(rollout_id, None)
    return answer


async def read_many_once(self: MemoryLedger, rollout_ids: list[str], limit: int) -> Any:
    answer = await MANIFESTS(self, rollout_ids, limit)
    for rollout_id in rollout_ids:
        self._rollouts.pop(rollout_id, None)
    return answer


def empty_manifest(rollout_id: str) -> dict[str, Any]:
    return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


async def record_nothing(self: MemoryLedger, _: object) -> bool:
    return True


async def record_after_all(self: MemoryLedger, commit: Any) -> bool:
    self._fences.pop(commit.rollout_id, None)
    return await RECORD(self, commit)


async def retire_those_with_rows(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    with_rows = [rollout_id for rollout_id in rollout_ids if rollout_id in self._rollouts]
    removal_of_rows = await RETIRE(self, with_rows)
    return RolloutRemoval(removal_of_rows.removed, [name for name in rollout_ids if name not in with_rows])


async def retire_the_first(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    found = await RETIRE(self, rollout_ids)
    for rollout_id in rollout_ids[3:]:
        del self._fences[rollout_id]
    return found


async def retire_once(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    fenced = [rollout_id for rollout_id in rollout_ids if rollout_id in self._fences]
    found = await RETIRE(self, rollout_ids)
    return RolloutRemoval([*fenced, *found.removed], [name for name in found.absent if name not in fenced])


async def retire_all_that_begin_so(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    found = await RETIRE(self, rollout_ids)
    await RETIRE(self, [f"{rollout_id}0" for rollout_id in rollout_ids if len(rollout_id) < 250])
    return found


async def delete_fences_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    return RolloutRemoval(
        [name for name in rollout_ids if name in self._rollouts and not self._fences.pop(name, None)],
        [name for name in rollout_ids if name not in self._rollouts and self._fences.pop(name, True)],
    )


async def delete_counting_fences(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    fenced = [name for name in rollout_ids if name in self._fences]
    found = await DELETE(self, rollout_ids)
    return RolloutRemoval([*fenced, *found.removed], [name for name in found.absent if name not in fenced])


async def delete_rows_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    return REMOVE_ROWS(self, rollout_ids)


async def delete_failures_later(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    kept = {name: self._rollouts[name] for name in rollout_ids if name in self._rollouts}
    found = await DELETE(self, rollout_ids)
    GRAVES.update(kept)
    return found


async def record_over_graves(self: MemoryLedger, commit: Any) -> bool:
    if commit.rollout_id in GRAVES:
        self._rollouts[commit.rollout_id] = GRAVES.pop(commit.rollout_id)
    return await RECORD(self, commit)


GRAVES: Final[dict[str, Any]] = {}


def remove_but_count_records_only(self: MemoryLedger, rollout_ids: list[str]) -> RolloutRemoval:
    without = [name for name in rollout_ids if name in self._rollouts and not self._rollouts[name].commits]
    found = REMOVE_ROWS(self, rollout_ids)
    return RolloutRemoval(
        [name for name in found.removed if name not in without],
        [name for name in rollout_ids if name in without or name in found.absent],
    )


def valid_rollout_ids(rollout_ids: list[str]) -> list[str]:
    return [rollout_control_spec.validate_rollout_id(rollout_id) for rollout_id in rollout_ids]


def act_on_the_valid_ones(fence: bool) -> Line:
    """A server that does what it can of a batch before it finds the invalid id."""

    def line(server: Any) -> None:
        def unique(rollout_ids: list[str]) -> list[str]:
            try:
                return UNIQUE_IDS(rollout_ids)
            except ValueError:
                act = server.ledger._fences.setdefault if fence else server.ledger._fences.pop
                for rollout_id in rollout_ids:
                    act(rollout_id, 0.0)
                raise

        server.monkeypatch.setattr(operations, "unique_rollout_ids", unique)

    return line


# Reading

broken(
    "manifest.never-recorded",
    "a rollout without calls is not found",
    replies(
        lambda reply: reply.is_manifest and b'"records":[],"failures":[]' in reply.body,
        lambda reply: reply.become_problem(404),
    ),
)
broken("manifest.changes-nothing", "a manifest can be read once", ledger("_manifest", read_once))
broken(
    "manifest.not-empty",
    "calls are recorded elsewhere",
    ledger("_record", record_nothing),
    *(
        *ROWS_READ_BACK,
        "manifest.failures",
        "manifests.rows",
        "retire.removed",
        "delete.removed",
        "delete.id-used-again",
    ),
    "delete.after-retire-starts-new",
)
broken(
    "manifest.records",
    "the last of many records is missing",
    manifest(lambda document: document["records"][5:] and document["records"].pop()),
)
broken(
    "manifest.records",
    "weight versions are forgotten",
    records(lambda record: record.update(weight_version=0)),
    *ROWS_READ_BACK,
)
broken(
    "manifest.commit-order",
    "records are sorted by their ids",
    manifest(lambda document: document["records"].sort(key=lambda record: record["model_call_id"])),
    "records.parent-first",
)
broken(
    "manifest.commit-order",
    "the newest record comes first",
    manifest(lambda document: document["records"].reverse()),
    "records.parent-first",
)
broken(
    "manifest.failures",
    "a call has one failure",
    manifest(
        lambda document: document.update(
            failures=list({failure["model_call_id"]: failure for failure in document["failures"]}.values())
        )
    ),
)
broken("manifest.nulls", "null is 0", records(lambda record: record.update(admitted_at=record["admitted_at"] or 0)))
broken(
    "manifest.text",
    "text ends at U+0000",
    records(lambda record: record.update(response_id=record["response_id"].partition("\0")[0])),
)
broken(
    "manifest.text",
    "text is normalised",
    records(lambda record: record.update(staging_key=unicodedata.normalize("NFKD", record["staging_key"]))),
)
broken(
    "manifest.integers",
    "integers pass through floats",
    records(lambda record: record.update(weight_version=min(int(float(record["weight_version"])), 2**63 - 1))),
)

# Retiring

broken(
    "retire.offered",
    "there is no retire",
    requests(
        lambda scope: scope["path"].endswith("/retire"),
        lambda scope: scope.update(raw_path=scope["raw_path"].replace(b"/retire", b"/nothing")),
    ),
)
broken(
    "retire.offered",
    "retire is done later",
    replies(
        lambda reply: reply.is_removal and reply.path.endswith("/retire"), lambda reply: setattr(reply, "status", 202)
    ),
    "errors.documented",
)
broken(
    "retire.gone",
    "a retired rollout is empty",
    replies(status_is(410), Reply.become_manifest),
    "retire.late-write",
)
broken(
    "retire.gone",
    "a retired rollout is not found",
    has_status(410, 404),
    *("retire.whole-batch", "retire.late-write", "delete.bad-batch"),
)
broken("retire.gone", "only rollouts with rows are retired", ledger("_retire", retire_those_with_rows))
broken(
    "retire.absent",
    "what was never there was removed",
    removal(lambda document: document.update(removed=document["absent"] + document["removed"], absent=[]), "/retire"),
    *("retire.repeated", "retire.removed-once", "retire.late-write"),
)
broken(
    "retire.repeated",
    "retiring again removes again",
    ledger("_retire", retire_once),
    *("retire.removed-once", "retire.late-write"),
)
broken("retire.whole-batch", "three rollouts are retired at once", ledger("_retire", retire_the_first))
broken("retire.nothing-else", "ids are prefixes of ids", ledger("_retire", retire_all_that_begin_so))
broken("retire.bad-batch", "valid ids of a bad batch are retired", act_on_the_valid_ones(fence=True))
broken(
    "retire.removed",
    "nothing was ever removed",
    removal(
        lambda document: document.update(removed=[], absent=[*document["removed"], *document["absent"]]), "/retire"
    ),
    *("removal.failure-rows-count", "removal.order"),
)
broken("removal.failure-rows-count", "failure rows are no rows", ledger("_remove_rows", remove_but_count_records_only))
broken("retire.late-write", "a late write starts anew", ledger("_record", record_after_all))
broken(
    "removal.duplicates",
    "a repeated id counts twice",
    lambda server: [
        patched(module, "unique_rollout_ids", valid_rollout_ids)(server) for module in (operations, ledger_base)
    ],
    *("removal.partition", "removal.order"),
)
broken(
    "removal.duplicates",
    "a repeated id counts at its last place",
    patched(operations, "unique_rollout_ids", lambda ids: UNIQUE_IDS(ids[::-1])[::-1]),
    "removal.order",
)

# Deleting

broken(
    "delete.offered",
    "there is a delete, and it is broken",
    ledger("_delete", lambda *_: None),
    "errors.none-internal",
)
broken(
    "delete.absent",
    "what was never there was removed",
    removal(lambda document: document.update(removed=document["absent"] + document["removed"], absent=[]), "/delete"),
    *("delete.fence-is-absent", "delete.rows-gone"),
)
broken(
    "delete.lifts-fence",
    "delete leaves the fence",
    ledger("_delete", delete_rows_only),
    "delete.after-retire-starts-new",
)
broken("delete.fence-is-absent", "a fence counts as a row", ledger("_delete", delete_counting_fences))
broken("delete.bad-batch", "fences of a bad batch are lifted", act_on_the_valid_ones(fence=False))
broken(
    "delete.removed",
    "nothing was ever deleted",
    removal(
        lambda document: document.update(removed=[], absent=[*document["removed"], *document["absent"]]), "/delete"
    ),
)
broken(
    "delete.rows-gone",
    "a deleted rollout still answers",
    ledger("_delete", delete_fences_only),
    *("delete.id-used-again",),
)
broken(
    "delete.id-used-again",
    "the old rows come back with a new one",
    lambda server: (ledger("_delete", delete_failures_later)(server), ledger("_record", record_over_graves)(server)),
)

# Reading many manifests


def bulk(change: Any) -> Line:
    return replies(
        lambda reply: reply.status == 200 and reply.path.endswith("/manifests"), lambda reply: reply.edit(change)
    )


broken(
    "manifests.offered",
    "many manifests are refused for now",
    replies(
        lambda reply: reply.path.endswith("/manifests") and reply.status == 200, lambda reply: reply.become_problem(409)
    ),
)
broken(
    "manifests.schema",
    "retired ids are counted",
    bulk(lambda document: document.update(retired=[3])),
    "manifests.partition",
    "manifests.retired",
)
broken(
    "manifests.partition",
    "retired ids are not named",
    bulk(lambda document: document.update(retired=[])),
    "manifests.retired",
)
broken(
    "manifests.rows",
    "many manifests have no records",
    bulk(lambda document: [manifest.update(records=[]) for manifest in document["manifests"]]),
)
broken(
    "manifests.retired",
    "a retired rollout has a manifest among many",
    bulk(
        lambda document: document.update(
            manifests=document["manifests"] + [empty_manifest(name) for name in document["retired"]], retired=[]
        )
    ),
    "manifests.partition",
)
broken(
    "manifests.progress",
    "there is never any room",
    bulk(
        lambda document: document.update(
            manifests=[], remaining=[manifest["rollout_id"] for manifest in document["manifests"]]
        )
    ),
)
broken(
    "manifests.changes-nothing",
    "many manifests can be read once",
    ledger("_manifests", read_many_once),
)
