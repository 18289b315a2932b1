"""What concurrent users of one ledger saw, and whether the wire contract allows it.

Every operation is an interval: it took effect, if at all, at some moment between its begin and its end. So the contract
decides only what is certain: an effect whose operation had ended before, and which no operation since can have undone.
One that never ended, because its process was killed, may have happened until then.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

__all__ = ["FOREVER", "Event", "Row", "violations"]

FOREVER: Final = 2**63 - 1

Row = tuple[str, int]
"""A call as a manifest shows it: its id and its weight version, by which rival commits differ; -1 for a failure row."""

Outcome = Literal["kept", "discarded", "conflict", "rows", "retired", "removed", "absent", "unknown"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one rollout.

    Attributes:
        begin: When it was called, in nanoseconds of a clock that all processes share.
        end: When it returned; until when it may have happened, if it is not known to have returned.
        outcome: `kept`, `discarded` and `conflict` are a record's; `rows` and `retired` a read's; `removed` and
            `absent` a retire's or a delete's; `unknown` belongs to one that did not return.
        row: What was to be recorded.
        rows: What a manifest showed.
    """

    kind: Literal["record", "read", "retire", "delete"]
    rollout_id: str
    begin: int
    end: int
    outcome: Outcome
    row: Row | None = None
    rows: tuple[Row, ...] = ()


def violations(events: Iterable[Event]) -> list[str]:
    """Returns what the contract does not allow, in words; nothing when all is well."""
    by_rollout: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_rollout[event.rollout_id].append(event)
    return [text for history in by_rollout.values() for text in _Rollout(history).violations()]


class _Rollout:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.retires = [event for event in events if event.kind == "retire"]
        self.deletes = [event for event in events if event.kind == "delete"]
        self.removals = self.retires + self.deletes
        self.records = [event for event in events if event.kind == "record"]
        self.writes: dict[Row, list[Event]] = defaultdict(list)
        for event in self.records:
            assert event.row is not None
            if event.outcome in ("kept", "unknown"):
                self.writes[event.row].append(event)

    def violations(self) -> list[str]:
        checks: dict[str, Callable[[Event], Iterable[str]]] = {
            "record": self._check_record,
            "read": self._check_read,
            "retire": self._check_removal,
            "delete": self._check_removal,
        }
        return [f"{text}: {event}" for event in self.events for text in checks[event.kind](event)]

    def _check_record(self, event: Event) -> Iterable[str]:
        if event.outcome == "kept":
            if self._must_be_fenced(event):
                yield "a late write was kept"
            for rival in self.records:
                both = rival.outcome == "kept" and rival.row is not None and event.row is not None
                if both and rival.row[0] == event.row[0] and rival.row[1] < event.row[1]:
                    begin, end = min(rival.begin, event.begin), max(rival.end, event.end)
                    if not any(one.end > begin and one.begin < end for one in self.removals):
                        yield f"two commits of one call were kept, the other is {rival}"
        elif event.outcome == "discarded":
            if not self._may_be_fenced(event):
                yield "a write was discarded without a fence"
        elif event.outcome == "conflict":
            assert event.row is not None
            rivals = [row for row in self.writes if row[0] == event.row[0] and row != event.row]
            if not any(self._may_show(row, event) for row in rivals):
                yield "a write conflicted with nothing"

    def _check_read(self, event: Event) -> Iterable[str]:
        if event.outcome == "unknown":
            return
        if event.outcome == "retired":
            if not self._may_be_fenced(event):
                yield "a read found a fence that nobody can have set"
            return
        if self._must_be_fenced(event):
            yield "a read after a retire did not find the fence"
        if len({call_id for call_id, _ in event.rows}) < len(event.rows):
            yield "a read shows a call twice"
        for row in event.rows:
            if not self._may_show(row, event):
                yield f"a read shows {row}, which was removed or never recorded"
        shown = set(event.rows)
        for row in self.writes:
            if row not in shown and self._must_show(row, event):
                yield f"a read has lost {row}"
        order = {row: place for place, row in enumerate(event.rows)}
        once = [writes[0] for row, writes in self.writes.items() if row in order and row[1] >= 0 and len(writes) == 1]
        latest = None
        for write in sorted(once, key=lambda one: order[one.row]):
            if latest is not None and write.end < latest.begin:
                yield f"a read shows {latest.row} before {write.row}"
            latest = write if latest is None or write.begin > latest.begin else latest

    def _check_removal(self, event: Event) -> Iterable[str]:
        if event.outcome == "removed":
            if self._must_be_fenced(event, but=event):
                yield "a fenced rollout was reported as removed"
            if not any(self._may_show(row, event) for row in self.writes):
                yield "a rollout without rows was reported as removed"
        elif event.outcome == "absent" and any(self._must_show(row, event, but=event) for row in self.writes):
            yield "a rollout with rows was reported as absent"

    def _must_be_fenced(self, event: Event, but: Event | None = None) -> bool:
        """Tells whether the rollout was fenced during the whole event, whatever the order of what overlaps."""
        return any(
            retire.outcome != "unknown"
            and retire.end < event.begin
            and not any(
                delete.end > retire.begin and delete.begin < event.end for delete in self.deletes if delete is not but
            )
            for retire in self.retires
            if retire is not but
        )

    def _may_be_fenced(self, event: Event) -> bool:
        return any(
            retire.begin < event.end
            and not any(
                delete.outcome != "unknown" and delete.begin > retire.end and delete.end < event.begin
                for delete in self.deletes
            )
            for retire in self.retires
        )

    def _must_show(self, row: Row, event: Event, but: Event | None = None) -> bool:
        return any(
            write.outcome == "kept"
            and write.end < event.begin
            and not any(
                removal.end > write.begin and removal.begin < event.end
                for removal in self.removals
                if removal is not but
            )
            for write in self.writes[row]
        )

    def _may_show(self, row: Row, event: Event) -> bool:
        return any(
            write.begin < event.end
            and not any(
                removal.outcome != "unknown" and removal.begin > write.end and removal.end < event.begin
                for removal in self.removals
            )
            for write in self.writes.get(row, ())
        )
