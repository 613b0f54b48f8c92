"""The main job, over HTTP."""

from tests.client import RelayClient, make_device


def test_an_envelope_is_submitted_pulled_and_acknowledged(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    accepted = relay.submit(sender, recipient, b"hello")
    assert accepted.status_code == 201
    [envelope] = relay.pull(recipient).json()["envelopes"]
    assert envelope["message_id"] == accepted.json()["message_id"]
    assert envelope["ciphertext"] == "aGVsbG8="
    results = relay.acknowledge(recipient, [envelope["message_id"]]).json()["results"]
    assert results == [{"message_id": envelope["message_id"], "status": "acknowledged"}]
    assert relay.pull(recipient).json()["envelopes"] == []
