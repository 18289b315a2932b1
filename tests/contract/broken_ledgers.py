"""Servers that do the wrong thing to the ledgers."""

import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final

from broken_requests import ROWS_READ_BACK
from broken_server_layers import (
    Call,
    Line,
    Server,
    broken,
    has_status,
    is_valid,
    manifest,
    on_ledger,
    reading_first,
    records,
    removal,
    replies,
    requests,
    success_of,
)
from rollout_control_server import CaptureCommit, MemoryLedger, RolloutRetiredError
from rollout_control_server.ledger.results import IdleRemoval, RolloutPage
from rollout_control_server.records import RolloutRemoval

NOT_LISTED: Final = ("rollouts.retired", "rollouts.pages", "rollouts.state")
FOREVER_S: Final = 1e9


async def is_retired(ledger: MemoryLedger, rollout_id: str) -> bool:
    try:
        await ledger.has_rows(rollout_id)
    except RolloutRetiredError:
        return True
    return False


async def retired_among(ledger: MemoryLedger, rollout_ids: Sequence[str]) -> list[str]:
    return [rollout_id for rollout_id in rollout_ids if await is_retired(ledger, rollout_id)]


def with_ids_moved(found: RolloutRemoval, *, removed: Sequence[str] = (), absent: Sequence[str] = ()) -> RolloutRemoval:
    """Returns what a removal found, with some ids moved to the other list."""
    return RolloutRemoval(
        [*removed, *(name for name in found.removed if name not in absent)],
        [*(name for name in found.absent if name not in removed), *absent],
    )


class ReadOnce(MemoryLedger):
    async def manifest(self, rollout_id: str) -> bytes:
        answer = await super().manifest(rollout_id)
        await super().delete([rollout_id])
        return answer


class ReadManyOnce(MemoryLedger):
    async def manifests(self, rollout_ids: Sequence[str], max_bytes: int) -> Any:
        answer = await super().manifests(rollout_ids, max_bytes)
        retired = await retired_among(self, rollout_ids)
        await super().delete([rollout_id for rollout_id in rollout_ids if rollout_id not in retired])
        return answer


class RecordsNothing(MemoryLedger):
    async def record(self, commit: CaptureCommit) -> bool:
        return True


class RecordsAfterAll(MemoryLedger):
    async def record(self, commit: CaptureCommit) -> bool:
        if await is_retired(self, commit.rollout_id):
            await super().delete([commit.rollout_id])
        return await super().record(commit)


class RetiresThoseWithRows(MemoryLedger):
    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        with_rows = [name for name in rollout_ids if name not in retired and await self.has_rows(name)]
        found = await super().retire(with_rows)
        return RolloutRemoval(found.removed, [name for name in rollout_ids if name not in with_rows])


class RetiresThree(MemoryLedger):
    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        found = await super().retire(rollout_ids[:3])
        return RolloutRemoval(found.removed, [*found.absent, *rollout_ids[3:]])


class RetiresAgain(MemoryLedger):
    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        return with_ids_moved(await super().retire(rollout_ids), removed=retired)


class RetiresAllThatBeginSo(MemoryLedger):
    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        found = await super().retire(rollout_ids)
        await super().retire([f"{rollout_id}0" for rollout_id in rollout_ids if len(rollout_id) < 250])
        return found


class CountsRecordsOnly(MemoryLedger):
    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        without = [name for name in rollout_ids if name not in retired and await self._has_no_record(name)]
        found = await super().retire(rollout_ids)
        return with_ids_moved(found, absent=[name for name in without if name in found.removed])

    async def _has_no_record(self, rollout_id: str) -> bool:
        return b'"records":[]' in await self.manifest(rollout_id)


class DeletesFencesOnly(MemoryLedger):
    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        with_rows = [name for name in rollout_ids if name not in retired and await self.has_rows(name)]
        await super().delete(retired)
        return RolloutRemoval(with_rows, [name for name in rollout_ids if name not in with_rows])


class DeletesRowsOnly(MemoryLedger):
    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        found = await super().delete([name for name in rollout_ids if name not in retired])
        return with_ids_moved(found, absent=retired)


class CountsFences(MemoryLedger):
    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        return with_ids_moved(await super().delete(rollout_ids), removed=retired)


class RevivesTheDeleted(MemoryLedger):
    """A ledger in which the rows of a deleted rollout come back with the next record."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: dict[str, list[CaptureCommit]] = {}
        self._deleted: dict[str, list[CaptureCommit]] = {}

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        retired = await retired_among(self, rollout_ids)
        for rollout_id in rollout_ids:
            commits = self._recorded.pop(rollout_id, [])
            if rollout_id not in retired:
                self._deleted[rollout_id] = commits
        return await super().delete(rollout_ids)

    async def record(self, commit: CaptureCommit) -> bool:
        for earlier in self._deleted.pop(commit.rollout_id, []):
            await super().record(earlier)
        self._recorded.setdefault(commit.rollout_id, []).append(commit)
        return await super().record(commit)


class FailsToDelete(MemoryLedger):
    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        raise RuntimeError("delete is broken")


class RetiresIdleAndAbsent(MemoryLedger):
    async def retire_idle(self, rollout_ids: Sequence[str], idle_for_s: float) -> IdleRemoval:
        found = await super().retire_idle(rollout_ids, idle_for_s)
        await self.retire(found.absent)
        return found


class RetiresTheActive(MemoryLedger):
    async def retire_idle(self, rollout_ids: Sequence[str], idle_for_s: float) -> IdleRemoval:
        return await super().retire_idle(rollout_ids, 0)


class RetiresNoneOfTheIdle(MemoryLedger):
    async def retire_idle(self, rollout_ids: Sequence[str], idle_for_s: float) -> IdleRemoval:
        return await super().retire_idle(rollout_ids, FOREVER_S)


class RetiresTheFenced(MemoryLedger):
    async def retire_idle(self, rollout_ids: Sequence[str], idle_for_s: float) -> IdleRemoval:
        retired = await retired_among(self, rollout_ids)
        found = await super().retire_idle(rollout_ids, idle_for_s)
        return IdleRemoval(
            [*found.removed, *retired], [one for one in found.absent if one not in retired], found.active
        )


def without_filter(name: str) -> type[MemoryLedger]:
    """Returns a ledger whose listing ignores an argument."""

    class WithoutFilter(MemoryLedger):
        async def rollouts(self, **arguments: Any) -> RolloutPage:
            return await super().rollouts(**{key: value for key, value in arguments.items() if key != name})

    return WithoutFilter


class SkipsTheFirstOfAPage(MemoryLedger):
    async def rollouts(self, *, after: str | None = None, **arguments: Any) -> RolloutPage:
        page = await super().rollouts(after=after, **arguments)
        return page if after is None else RolloutPage(page.rollouts[1:], page.next)


class RepeatsTheLastOfAPage(MemoryLedger):
    async def rollouts(self, *, after: str | None = None, **arguments: Any) -> RolloutPage:
        page = await super().rollouts(after=after, **arguments)
        if after is None:
            return page
        before = await super().rollouts(prefix=after, limit=1)
        return RolloutPage([*before.rollouts, *page.rollouts], page.next)


class ListsWithoutRegardToCase(MemoryLedger):
    async def rollouts(self, **arguments: Any) -> RolloutPage:
        page = await super().rollouts(**arguments)
        return RolloutPage(sorted(page.rollouts, key=lambda entry: entry.rollout_id.lower()), page.next)


def does_what_it_can(operation: str) -> Line:
    """A server that does what it can of a batch before it finds the invalid id."""

    def line(server: Server) -> None:
        async def act(call: Call) -> None:
            if call.path.endswith(f"/{operation}") and not all(map(is_valid, call.rollout_ids)):
                await getattr(server.ledger, operation)([name for name in call.rollout_ids if is_valid(name)])

        server.request_edits.append(act)

    return line


def empty_manifest(rollout_id: str) -> dict[str, Any]:
    return {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}


def empty_instead_of_gone(server: Server) -> None:
    def change(call: Call) -> None:
        if call.reply.status == 410:
            call.reply.become_json(empty_manifest(call.path.split("/")[-2]))

    server.reply_edits.append(change)


def in_the_order_of_last_places(server: Server) -> None:
    """A repeated id counts at its last place."""

    def change(call: Call) -> None:
        if call.is_removal:
            places = {name: place for place, name in enumerate(call.rollout_ids)}
            call.reply.edit(lambda document: [named.sort(key=places.get) for named in document.values()])

    server.reply_edits.append(change)


def as_often_as_named(server: Server) -> None:
    """A repeated id counts as often as it is named."""

    def change(call: Call) -> None:
        if call.is_removal:
            call.reply.edit(
                lambda document: document.update(
                    {kind: [name for name in call.rollout_ids if name in named] for kind, named in document.items()}
                )
            )

    server.reply_edits.append(change)


# Reading

broken(
    "manifest.never-recorded",
    "a rollout without calls is not found",
    replies(
        lambda call: call.is_manifest and b'"records":[],"failures":[]' in call.reply.body,
        lambda reply: reply.become_problem(404),
    ),
)
broken("manifest.changes-nothing", "a manifest can be read once", on_ledger(ReadOnce))
broken(
    "manifest.not-empty",
    "calls are recorded elsewhere",
    on_ledger(RecordsNothing),
    *(
        *ROWS_READ_BACK,
        "manifest.failures",
        "manifests.rows",
        "retire.removed",
        "delete.removed",
        "delete.id-used-again",
        "rollouts.live",
        "rollouts.state",
        "rollouts.has-failures",
        "rollouts.idle-for",
        "rollouts.changed-since",
        "retire-idle.active",
        "retire-idle.idle",
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
broken(
    "manifest.failures-order",
    "failures are sorted by their reasons",
    manifest(lambda document: document["failures"].sort(key=lambda failure: failure["reason"])),
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
        lambda call: call.path.endswith("/retire"),
        lambda call: call.scope.update(raw_path=call.scope["raw_path"].replace(b"/retire", b"/nothing")),
    ),
)
broken(
    "retire.offered",
    "retire is done later",
    replies(
        lambda call: call.is_removal and call.path.endswith("/retire"), lambda reply: setattr(reply, "status", 202)
    ),
    "errors.documented",
)
broken(
    "retire.gone",
    "a retired rollout is empty",
    empty_instead_of_gone,
    *("retire.late-write", "retire-idle.idle"),
)
broken(
    "retire.gone",
    "a retired rollout is not found",
    has_status(410, 404),
    *("retire.whole-batch", "retire.late-write", "delete.bad-batch", "retire-idle.idle"),
)
broken(
    "retire.gone",
    "a retired rollout is a teapot",
    has_status(410, 418),
    *("errors.documented", "retire.whole-batch", "retire.late-write", "delete.bad-batch", "manifests.retired"),
    "retire-idle.idle",
)
broken("retire.gone", "only rollouts with rows are retired", on_ledger(RetiresThoseWithRows), *NOT_LISTED)
broken(
    "retire.absent",
    "what was never there was removed",
    removal(lambda document: document.update(removed=document["absent"] + document["removed"], absent=[]), "/retire"),
    *("retire.repeated", "retire.removed-once", "retire.late-write"),
)
broken(
    "retire.repeated",
    "retiring again removes again",
    on_ledger(RetiresAgain),
    *("retire.removed-once", "retire.late-write"),
)
broken("retire.whole-batch", "three rollouts are retired at once", on_ledger(RetiresThree), "rollouts.pages")
broken("retire.nothing-else", "ids are prefixes of ids", on_ledger(RetiresAllThatBeginSo), *NOT_LISTED)
broken("retire.bad-batch", "valid ids of a bad batch are retired", does_what_it_can("retire"))
broken(
    "retire.removed",
    "nothing was ever removed",
    removal(
        lambda document: document.update(removed=[], absent=[*document["removed"], *document["absent"]]), "/retire"
    ),
    *("removal.failure-rows-count", "removal.order"),
)
broken("removal.failure-rows-count", "failure rows are no rows", on_ledger(CountsRecordsOnly))
broken("retire.late-write", "a late write starts anew", on_ledger(RecordsAfterAll))
broken(
    "removal.duplicates",
    "a repeated id counts twice",
    as_often_as_named,
    *("removal.partition", "removal.order"),
)
broken(
    "removal.duplicates",
    "a repeated id counts at its last place",
    in_the_order_of_last_places,
    "removal.order",
)

# Deleting

broken(
    "delete.offered",
    "there is a delete, and it is broken",
    on_ledger(FailsToDelete),
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
    on_ledger(DeletesRowsOnly),
    "delete.after-retire-starts-new",
)
broken("delete.fence-is-absent", "a fence counts as a row", on_ledger(CountsFences))
broken("delete.bad-batch", "fences of a bad batch are lifted", does_what_it_can("delete"))
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
    on_ledger(DeletesFencesOnly),
    *("delete.id-used-again",),
)
broken(
    "delete.id-used-again",
    "the old rows come back with a new one",
    on_ledger(RevivesTheDeleted),
)

# Reading many manifests


broken(
    "manifests.offered",
    "many manifests are refused for now",
    replies(
        lambda call: call.path.endswith("/manifests") and call.reply.status == 200,
        lambda reply: reply.become_problem(409),
    ),
)
broken(
    "manifests.schema",
    "retired ids are counted",
    success_of("/manifests", lambda document: document.update(retired=[3])),
    "manifests.partition",
    "manifests.retired",
)
broken(
    "manifests.retired",
    "retired ids are not named",
    success_of("/manifests", lambda document: document.update(retired=[])),
    "manifests.partition",
)
broken(
    "manifests.rows",
    "many manifests have no records",
    success_of("/manifests", lambda document: [manifest.update(records=[]) for manifest in document["manifests"]]),
)
broken(
    "manifests.retired",
    "a retired rollout has a manifest among many",
    success_of(
        "/manifests",
        lambda document: document.update(
            manifests=document["manifests"] + [empty_manifest(name) for name in document["retired"]], retired=[]
        ),
    ),
    "manifests.partition",
)
broken(
    "manifests.progress",
    "there is never any room",
    success_of(
        "/manifests",
        lambda document: document.update(
            manifests=[], remaining=[manifest["rollout_id"] for manifest in document["manifests"]]
        ),
    ),
)
broken(
    "manifests.changes-nothing",
    "many manifests can be read once",
    on_ledger(ReadManyOnce),
)

# Which rollouts there are


def reading_idle_batches(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Line:
    """A server that takes another batch of idle rollouts than the one that was sent."""

    def line(server: Server) -> None:
        reading_first(lambda call: call.path.endswith("/retire-idle"))(server)
        requests(
            lambda call: isinstance(call.document, dict) and call.path.endswith("/retire-idle"),
            lambda call: call.set_body(json.dumps(change(call.document)).encode()),
        )(server)

    return line


def without_unknown_parameters(call: Call) -> None:
    query = call.scope["query_string"].split(b"&")
    call.scope["query_string"] = b"&".join(part for part in query if not part.startswith(b"older_than="))


for operation in ("rollouts", "summary", "retire-idle"):
    broken(
        f"{operation}.offered",
        f"{operation} does not answer as it should",
        replies(
            lambda call, operation=operation: call.path.endswith(f"/{operation}") and call.reply.status == 200,
            lambda reply: reply.become_problem(400),
        ),
    )
broken(
    "rollouts.schema",
    "rollouts are alive",
    success_of("/rollouts", lambda page: [entry.update(state="alive") for entry in page["rollouts"] if entry["calls"]]),
    "rollouts.live",
)
broken(
    "rollouts.query",
    "unknown parameters are ignored",
    requests(lambda call: call.path.endswith("/rollouts"), without_unknown_parameters),
)
broken(
    "rollouts.live",
    "failures count as calls",
    success_of(
        "/rollouts",
        lambda page: [
            entry.update(calls=entry["calls"] + entry["failures"]) for entry in page["rollouts"] if entry["calls"]
        ],
    ),
)
broken(
    "rollouts.retired",
    "retired rollouts are not listed",
    success_of(
        "/rollouts",
        lambda page: page.update(rollouts=[entry for entry in page["rollouts"] if entry["state"] == "live"]),
    ),
    *("rollouts.pages", "rollouts.state"),
)
broken("rollouts.pages", "there is one page", success_of("/rollouts", lambda page: page.update(next=None)))
broken("rollouts.pages", "the first rollout of a page is skipped", on_ledger(SkipsTheFirstOfAPage))
broken("rollouts.pages", "the last rollout of a page comes again", on_ledger(RepeatsTheLastOfAPage))
broken("rollouts.pages", "capitals are small letters in the order", on_ledger(ListsWithoutRegardToCase))
broken(
    "rollouts.live",
    "the prefix is ignored",
    on_ledger(without_filter("prefix")),
    *("rollouts.retired", "rollouts.pages", "rollouts.state"),
    *("rollouts.has-failures", "rollouts.idle-for", "rollouts.changed-since"),
)
broken("rollouts.limit", "the limit is ignored", on_ledger(without_filter("limit")))
broken("rollouts.state", "the state is ignored", on_ledger(without_filter("state")))
broken("rollouts.has-failures", "failures are not looked at", on_ledger(without_filter("has_failures")))
broken("rollouts.idle-for", "the idle time is ignored", on_ledger(without_filter("idle_for_s")))
broken("rollouts.changed-since", "changes are not looked at", on_ledger(without_filter("changed_since")))
broken(
    "summary.counts",
    "nothing is counted",
    success_of("/summary", lambda summary: summary.update(live=0, retired=0, with_failures=0, rows=0)),
)
broken("retire-idle.fenced", "fenced rollouts are retired again", on_ledger(RetiresTheFenced))
broken(
    "retire-idle.partition",
    "ids are sorted",
    success_of("/retire-idle", lambda removal: removal.update(absent=sorted(removal["absent"]))),
)
broken(
    "retire-idle.schema",
    "the idle time is 0 where it is not given",
    reading_idle_batches(lambda batch: {"idle_for_s": 0, **batch}),
)
broken(
    "retire-idle.bad-batch",
    "invalid ids of a batch are left out",
    reading_idle_batches(lambda batch: {**batch, "rollout_ids": list(filter(is_valid, batch["rollout_ids"]))}),
)
broken("retire-idle.fences-no-absent", "ids without rows are fenced", on_ledger(RetiresIdleAndAbsent))
broken("retire-idle.active", "active rollouts are retired", on_ledger(RetiresTheActive))
broken("retire-idle.idle", "idle rollouts are not retired", on_ledger(RetiresNoneOfTheIdle))
