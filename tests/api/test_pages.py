"""Pages for people, and the words and headers that answers do without."""

import pytest

from tests.client import RelayClient, make_device


def test_the_root_leads_to_everything_there_is_for_people(relay: RelayClient) -> None:
    page = relay.http.get("/")
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
    for target in ("/api/docs/", "/api/schema/", "/api/errors", "/admin/"):
        assert f'href="{target}"' in page.text


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/docs", "/api/docs/"),
        ("/api/schema", "/api/schema/"),
        ("/api/errors/", "/api/errors"),
        ("/admin", "/admin/"),
    ],
)
def test_a_slash_too_many_or_too_few_leads_there(
    relay: RelayClient, path: str, target: str
) -> None:
    answer = relay.http.get(path)
    assert (answer.status_code, answer.headers["Location"]) == (302, target)


def test_a_served_call_tells_no_allow_and_a_refused_method_does(relay: RelayClient) -> None:
    device = make_device()
    assert "Allow" not in relay.call("GET", "/v1/device", device).headers
    assert "Allow" not in relay.call("GET", "/v1/instance", None).headers
    refused = relay.call("PATCH", "/v1/device", device)
    assert (refused.status_code, refused.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("ids", "detail"),
    [([], "Must have at least 1 entry."), ("x", "Must be a list.")],
)
def test_what_is_wrong_with_a_list_is_told_in_our_words(
    relay: RelayClient, ids: object, detail: str
) -> None:
    answer = relay.call("POST", "/v1/acks", make_device(), json={"message_ids": ids})
    assert answer.json()["errors"] == [{"pointer": "/message_ids", "detail": detail}]
