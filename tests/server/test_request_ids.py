"""X-Request-Id: an answer carries it, and what the server logs of a request names it."""

import logging
import re

import pytest
from rollout_control_server import LedgerUnavailableError
from rollout_control_spec import REQUEST_ID_HEADER
from served import Control, controlled

MADE_HERE = re.compile("[A-Za-z0-9._-]{1,128}")


class Unavailable:
    """A ledger whose storage cannot answer."""

    async def manifest(self, rollout_id: str) -> object:
        raise LedgerUnavailableError("the disk is away", retry_after_s=7)

    async def retire(self, rollout_ids: object) -> object:
        raise ValueError("a mistake in the ledger")

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("request_id", ["train-0007-step-12.retire", "a", "x" * 128])
def test_an_answer_carries_the_id_of_its_request(control: Control, request_id: str) -> None:
    answer = control.get_manifest("r", headers={REQUEST_ID_HEADER: request_id})
    assert (answer.status_code, answer.headers[REQUEST_ID_HEADER]) == (200, request_id)


def test_so_does_a_refusal_beside_its_other_headers(control: Control) -> None:
    answer = control.get_manifest("r", headers={REQUEST_ID_HEADER: "step-1", "authorization": "Bearer wrong"})
    assert (answer.status_code, answer.headers[REQUEST_ID_HEADER]) == (401, "step-1")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("sent", [None, "", "two words", "x" * 129, "a/b", "caf\xe9", "a,b"])
def test_the_server_makes_an_id_where_none_can_be_used(control: Control, sent: str | None) -> None:
    headers = {} if sent is None else {REQUEST_ID_HEADER: sent.encode("latin-1")}
    made = [control.get_manifest("r", headers=headers) for _ in range(2)]
    ids = [answer.headers[REQUEST_ID_HEADER] for answer in made]
    assert [answer.status_code for answer in made] == [200, 200]
    assert all(MADE_HERE.fullmatch(request_id) for request_id in ids)
    assert len({sent, *ids}) == 3


def test_two_ids_in_one_request_count_as_none(control: Control) -> None:
    answer = control.get_manifest("r", headers=[(REQUEST_ID_HEADER, "one"), (REQUEST_ID_HEADER, "two")])
    assert answer.headers.get_list(REQUEST_ID_HEADER) != ["one", "two"]
    assert answer.headers[REQUEST_ID_HEADER] not in {"one", "two"}


def test_what_is_logged_of_a_request_names_it(caplog: pytest.LogCaptureFixture) -> None:
    with controlled(Unavailable()) as control, caplog.at_level(logging.WARNING, "rollout_control_server"):
        control.http.headers[REQUEST_ID_HEADER] = "step-1"
        assert control.get_manifest("r").status_code == 503
        control.http.headers[REQUEST_ID_HEADER] = "step-2"
        assert control.remove("retire", "r").status_code == 500
        assert control.http.get("/readyz").status_code == 500
    logged = [message.partition("(")[2] for message in caplog.messages]
    assert logged == ["request step-1)", "request step-2)", "no request)"]
