"""Web Push to a push service of ours that reads, verifies and answers (RFC 8030, 8291, 8292)."""

import json
import re
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import ec

from outbox.topics import Disposition, Settlement
from relay.models import Device, RetentionPolicy
from relay.selectors.retention import RETENTION_IN_FORCE
from relay.wakes import wiring
from relay.wakes.codes import Code
from relay.wakes.handler import handle
from relay.wakes.registrations import WebPush
from relay.wakes.vapid import derived_key, point_of
from relay.wakes.webpush import encrypt, topic_of
from tests.client import make_device
from tests.conftest import DatabaseClock
from tests.factories import now
from tests.wakes.conftest import Wiring, event, push_device, register
from tests.wakes.servers import Answer, HttpServer, Received
from tests.wakes.subscriber import CURVE, Subscriber, decode, encode, verified_claims

#: RFC 8291, section 5 and appendix A.
PLAINTEXT = b"When I grow up, I want to be a watermelon"
RECEIVER_PRIVATE = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
RECEIVER_PUBLIC = (
    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
)
SENDER_PRIVATE = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
AUTH, SALT = "BTBZMqHH6r4Tts7J_aSIgg", "DGv6ra1nlYgDCS1FRnbzlw"
MESSAGE = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27ml"
    "mlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPT"
    "pK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)
#: RFC 8292, section 2.4.
AUTHORIZATION = (
    "vapid t=eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3"
    "B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0NTM1MjM3NjgsInN1YiI6Im1haWx0bzpwd"
    "XNoQGV4YW1wbGUuY29tIn0.i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuCGSK2rpiU"
    "fnK9ojFwDXb1JrErtmysazNjjvW2L9OkSSHzvoD1oA, "
    "k=BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5aq9ojSwk5Y2EmClBPs"
)


def test_encryption_gives_the_message_of_the_rfc() -> None:
    registration = WebPush("https://push.example.net", decode(RECEIVER_PUBLIC), decode(AUTH))
    sender = ec.derive_private_key(int.from_bytes(decode(SENDER_PRIVATE), "big"), CURVE)
    message = encrypt(PLAINTEXT, registration=registration, salt=decode(SALT), sender=sender)
    assert encode(message) == MESSAGE


def test_the_subscriber_of_these_tests_reads_the_examples_of_the_rfcs() -> None:
    subscriber = Subscriber(private=decode(RECEIVER_PRIVATE), auth=decode(AUTH))
    assert subscriber.read(decode(MESSAGE)) == PLAINTEXT
    claims, _ = verified_claims(AUTHORIZATION)
    assert claims["aud"] == "https://push.example.net"


def one_push(
    wired: Wiring, push_service: HttpServer, subscriber: Subscriber | None = None
) -> Received:
    device_id = push_device(push_service.url("/up/a", host="localhost"), subscriber)
    arrived = event(device_id)
    assert handle([arrived], 20) == {
        arrived.event_id: Settlement(Disposition.DONE, Code.SENT),
    }
    return push_service.received[-1]


def test_the_subscriber_can_read_that_there_is_mail_and_nothing_else(
    wired: Wiring, push_service: HttpServer
) -> None:
    subscriber = Subscriber()
    device_id = push_device(push_service.url("/up/a?x=1", host="localhost"), subscriber)
    arrived = event(device_id)
    handle([arrived], 20)
    [received] = push_service.received
    assert (received.method, received.path) == ("POST", "/up/a?x=1")
    assert json.loads(subscriber.read(received.body)) == {
        "version": 1,
        "event_id": str(arrived.event_id),
    }
    assert str(device_id) not in str(received)


def test_the_headers_are_those_of_the_rfcs(wired: Wiring, push_service: HttpServer) -> None:
    headers = one_push(wired, push_service).headers
    assert headers["host"] == f"localhost:{push_service.port}"
    assert headers["content-encoding"] == "aes128gcm"
    assert headers["ttl"] == str(7 * 86_400)  # the instance's own
    assert headers["urgency"] == "high"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,32}", headers["topic"])
    known = {"host", "content-length", "content-encoding", "content-type", "ttl", "urgency"}
    assert set(headers) - known == {"topic", "authorization", "user-agent", "accept-encoding"}


def test_a_message_is_encrypted_anew_each_time(wired: Wiring, push_service: HttpServer) -> None:
    device_id = push_device(push_service.url("/up", host="localhost"))
    for _ in range(2):
        handle([event(device_id)], 20)
    first, second = (received.body for received in push_service.received)
    assert first[:16] != second[:16]  # the salt
    assert first[21:86] != second[21:86]  # the sender's key


def test_the_relay_identifies_itself_to_this_push_service(
    wired: Wiring, push_service: HttpServer, clock: DatabaseClock
) -> None:
    wired.set(WAKE_VAPID_CONTACT="mailto:ops@example.org")
    clock.freeze("2026-12-01T09:30:00Z")
    claims, public_key = verified_claims(one_push(wired, push_service).headers["authorization"])
    expires = datetime(2026, 12, 1, 21, 30, tzinfo=UTC)
    assert claims["aud"] == f"https://localhost:{push_service.port}"
    assert claims["sub"] == "mailto:ops@example.org"
    assert (
        timedelta(0) <= datetime.fromtimestamp(claims["exp"], UTC) - expires < timedelta(seconds=9)
    )
    assert set(claims) == {"aud", "sub", "exp"}
    assert public_key == wiring.vapid().public_key


def test_without_a_contact_the_relay_names_its_own_address_or_none(
    wired: Wiring, push_service: HttpServer
) -> None:
    wired.set(RELAY_URL="http://127.0.0.1:8000")
    claims, _ = verified_claims(one_push(wired, push_service).headers["authorization"])
    assert "sub" not in claims
    wired.set(RELAY_URL="https://relay.example.org")
    claims, _ = verified_claims(one_push(wired, push_service).headers["authorization"])
    assert claims["sub"] == "https://relay.example.org"


def test_the_derived_key_hangs_on_the_secret_alone() -> None:
    first, again, other = (
        derived_key(secret).public_key() for secret in ("a" * 32, "a" * 32, "b" * 32)
    )
    assert point_of(first) == point_of(again)
    assert point_of(first) != point_of(other)


def test_a_topic_is_the_subscription_s_own_and_tells_nothing(wired: Wiring) -> None:
    one, other = make_device().id, make_device().id
    here = WebPush("https://here.example", b"", b"")
    there = WebPush("https://there.example", b"", b"")
    topics = {topic_of(one, here), topic_of(one, there), topic_of(other, here)}
    assert len(topics) == 3
    assert topic_of(one, here) in topics
    assert one.hex[:8] not in topic_of(one, here)


def answers(wired: Wiring, push_service: HttpServer, answer: Answer) -> tuple[Settlement, bool]:
    """What becomes of an event whose push gets this answer, and whether the device stays."""
    push_service.answer = lambda received: answer
    device_id = push_device(push_service.url("/up", host="localhost"))
    arrived = event(device_id)
    settlement = handle([arrived], 20)[arrived.event_id]
    row = Device.objects.get(device_id=device_id)
    assert (row.wake_transport is None) is (row.wake_sealed is None)
    return settlement, row.wake_sealed is not None


def test_each_answer_has_its_meaning(wired: Wiring, push_service: HttpServer) -> None:
    sent = Settlement(Disposition.DONE, Code.SENT)
    gone = Settlement(Disposition.DONE, Code.GONE)
    after = {"Retry-After": "7"}

    def limited(seconds: float) -> Settlement:
        return Settlement(Disposition.LATER, Code.RATE_LIMITED, seconds)

    def failed(code: Code) -> Settlement:
        return Settlement(Disposition.FAILED, code)

    table = [
        (Answer(200), sent, True),
        (Answer(201, {"Location": "https://push.example.net/message"}), sent, True),
        (Answer(202), sent, True),
        (Answer(404), gone, False),
        (Answer(410), gone, False),
        (Answer(429), limited(30.0), True),
        (Answer(429, after), limited(7.0), True),
        (Answer(503, after), Settlement(Disposition.LATER, Code.UNAVAILABLE, 7.0), True),
        (Answer(503), failed(Code.STATUS_5XX), True),
        (Answer(500, after), failed(Code.STATUS_5XX), True),
        (Answer(400), failed(Code.STATUS_4XX), True),
        (Answer(403), failed(Code.STATUS_4XX), True),
        (Answer(413), failed(Code.STATUS_4XX), True),
        (Answer(307, {"Location": "/elsewhere"}), failed(Code.STATUS_3XX), True),
    ]
    found = [(answer, *answers(wired, push_service, answer)) for answer, _, _ in table]
    assert found == table
    assert len(push_service.received) == len(table)


def test_a_registration_made_while_the_old_one_was_refused_stays(
    wired: Wiring, push_service: HttpServer
) -> None:
    """The device registers the same endpoint anew while its push service says 410."""
    endpoint, subscriber = push_service.url("/up", host="localhost"), Subscriber()
    device_id = push_device(endpoint, subscriber)

    def answer(received: Received) -> Answer:
        if len(push_service.received) == 1:
            register(device_id, WebPush(endpoint, subscriber.p256dh, subscriber.auth))
            return Answer(410)
        return Answer(201)

    push_service.answer = answer
    for code in (Code.GONE, Code.SENT):
        arrived = event(device_id)
        assert handle([arrived], 20)[arrived.event_id].code == code


def test_a_wake_waits_as_long_as_mail_does_but_no_push_service_keeps_more_than_four_weeks(
    wired: Wiring, push_service: HttpServer
) -> None:
    RetentionPolicy.objects.create(version=2, ttl_days=30, receipt_days=31, created_at=now())
    RETENTION_IN_FORCE.forget()
    assert one_push(wired, push_service).headers["ttl"] == str(28 * 86_400)


def test_a_push_service_that_nobody_vouches_for_gets_nothing(
    wired: Wiring, push_service: HttpServer
) -> None:
    wired.set(WAKE_CA_FILE=None)
    arrived = event(push_device(push_service.url("/up", host="localhost")))
    assert handle([arrived], 20)[arrived.event_id] == Settlement(Disposition.FAILED, Code.TLS)
    assert push_service.received == []
