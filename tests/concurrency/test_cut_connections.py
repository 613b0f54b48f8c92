"""The relay's database connections die under it, at COMMIT too (FAULTS 10)."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
from django.db import connection

from idempotency.models import Record
from relay.models import Envelope
from tests.api.helpers import envelope_for, post
from tests.client import RelayClient, make_device, new_key
from tests.concurrency.crowd import Background, Crew, together
from tests.concurrency.loads import code_of, submit_surely
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.outside import connect
from tests.concurrency.proxy import Proxy, proxy_to
from tests.conftest import WEB_THREADS, RelayProcess, test_database_url

#: What this relay's backends call themselves: the one that other tests use is left in peace.
NAME = "relay-to-be-cut"
COMMITTED = b"COMMIT\x00"  # CommandComplete of a COMMIT


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A proxy in front of PostgreSQL."""
    parameters = connection.settings_dict
    with proxy_to(str(parameters["HOST"]), int(parameters["PORT"])) as made:
        yield made


@pytest.fixture(scope="module")
def victim(
    _migrated: None, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayProcess]:
    """A relay of our own, whose way to PostgreSQL leads through the proxy."""
    port = connection.settings_dict["PORT"]
    url = test_database_url().replace(f":{port}/", f":{proxy.port}/")
    process = RelayProcess(
        tmp_path_factory.mktemp("victim") / "web.log",
        DATABASE_URL=f"{url}?application_name={NAME}&sslmode=disable&gssencmode=disable",
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture
def cut(victim: RelayProcess, proxy: Proxy) -> Iterator[RelayClient]:
    """A client of that relay."""
    with RelayClient(victim.url) as client:
        yield client
    proxy.on_request = proxy.on_answer = lambda data: False


class _Once:
    """Cuts the first connection on which this passes."""

    def __init__(self, needle: bytes) -> None:
        self._needle = needle
        self._lock = threading.Lock()
        self.done = False

    def __call__(self, data: bytes) -> bool:
        with self._lock:
            if self.done or self._needle not in data:
                return False
            self.done = True
            return True


def test_backends_terminated_at_random_give_201_or_503_and_a_retry_that_fits(
    cut: RelayClient, relay: RelayClient
) -> None:
    sender, recipients = make_device(), [make_device() for _ in range(4)]
    journal, first_answers = Journal(), Counter[str]()
    counting = threading.Lock()

    def submit() -> None:
        recipient, message_id, key = random.choice(recipients), uuid4(), new_key()
        bodies: set[str] = set()
        for _ in range(200):
            answer = cut.submit(sender, recipient, message_id=message_id, key=key)
            with counting:
                first_answers[code_of(answer) or str(answer.status_code)] += 1
            if answer.status_code == 201:
                bodies.add(answer.text)
                break
            assert answer.status_code in (503, 409), answer.text
            assert answer.json()["retryable"] is True
        assert len(bodies) == 1
        journal.add(recipient.id, message_id, key, bodies.pop())

    def terminate(session) -> None:  # type: ignore[no-untyped-def]
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = %s AND state <> 'idle' ORDER BY random() LIMIT 2",
            [NAME],
        )
        time.sleep(0.03)

    with connect(autocommit=True) as session, Crew() as crew:
        crew.add(submit, 8)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            terminate(session)
    assert set(first_answers) <= {"201", "STORAGE_UNAVAILABLE", "IDEMPOTENCY_IN_PROGRESS"}
    assert first_answers["STORAGE_UNAVAILABLE"] > 0  # it did hit somebody
    assert first_answers["201"] > 5
    assert_sound(journal)
    for recipient in recipients:
        pulled = [each["message_id"] for each in relay.walk(recipient)]
        accepted = [
            str(entry.message_id) for entry in journal.accepted if entry.device_id == recipient.id
        ]
        assert sorted(pulled) == sorted(accepted)


def test_connections_that_ended_while_nobody_used_them_are_no_ones_error(cut: RelayClient) -> None:
    """As after a restart of PostgreSQL."""
    sender, recipient = make_device(), make_device()

    def submit() -> httpx.Response:
        return cut.submit(sender, recipient)

    for _ in range(2):
        answers = together([submit] * (2 * WEB_THREADS))
        assert {answer.status_code for answer in answers} == {201}
        with connect(autocommit=True) as session:
            ended = session.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = %s",
                [NAME],
            ).fetchall()
        assert len(ended) > WEB_THREADS // 4
        time.sleep(0.1)  # the end has a proxy on its way


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("way", ["one statement", "a transaction"])
def test_a_connection_cut_around_the_commit_is_503_and_the_key_resolves_it(
    cut: RelayClient, proxy: Proxy, way: str, moment: str
) -> None:
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()
    is_one = way == "one statement"

    def submit() -> httpx.Response:
        if is_one:  # it commits with its statement
            return cut.submit(sender, recipient, message_id=message_id, key=key)
        body = {"envelopes": [envelope_for(recipient, message_id=str(message_id))]}
        return post(cut, sender, body, path="/v1/envelopes/batch", key=key)

    if moment == "before":
        proxy.on_request = cutter = _Once(message_id.bytes if is_one else b"COMMIT")
    else:
        proxy.on_answer = cutter = _Once(b'"accepted_at"' if is_one else COMMITTED)
    answer = submit()
    assert cutter.done
    assert (answer.status_code, code_of(answer)) == (503, "STORAGE_UNAVAILABLE")
    # The client cannot know; the database does.
    committed = Envelope.objects.filter(message_id=message_id).count()
    assert committed == (0 if moment == "before" else 1)
    assert Record.objects.count() == committed
    again = submit_again(submit)
    assert again.status_code == (201 if is_one else 200)
    assert again.headers.get("Idempotency-Replayed") == ("true" if committed else None)
    assert Envelope.objects.filter(message_id=message_id).count() == 1
    journal = Journal()
    journal.add(recipient.id, message_id, key, again.text)
    assert_sound(journal if is_one else None)


def submit_again(submit) -> httpx.Response:  # type: ignore[no-untyped-def]
    """Until the answer is final: the backend that was cut off may still be at its end."""
    deadline = time.monotonic() + 10
    while True:
        answer = submit()
        if answer.status_code not in (503, 409):
            return answer
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_backend_terminated_during_the_commit_leaves_all_or_nothing(cut: RelayClient) -> None:
    """COMMIT is held inside PostgreSQL by a deferred trigger, and killed there."""
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()

    def submit() -> httpx.Response:
        return cut.submit(sender, recipient, message_id=message_id, key=key)

    with _slow_commits():
        first = Background(submit)
        with connect(autocommit=True) as session:
            deadline = time.monotonic() + 10
            killed = None
            while killed is None:
                killed = session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = %s AND wait_event = 'PgSleep'",
                    [NAME],
                ).fetchone()
                assert time.monotonic() < deadline
        assert code_of(first.result()) == "STORAGE_UNAVAILABLE"
    assert not Envelope.objects.exists()
    assert not Record.objects.exists()
    assert submit().status_code == 201
    assert_sound()


class _slow_commits:  # noqa: N801 - it is a with statement's word
    """Every transaction that tells the outbox stays in its COMMIT for a while."""

    def __enter__(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION tests_slow_commit() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(4); RETURN NULL; END $$"
            )
            cursor.execute(
                "CREATE CONSTRAINT TRIGGER tests_slow_commit AFTER INSERT ON outbox_event "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tests_slow_commit()"
            )

    def __exit__(self, *_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER tests_slow_commit ON outbox_event")
            cursor.execute("DROP FUNCTION tests_slow_commit()")


def test_the_next_request_on_every_thread_works_again(cut: RelayClient) -> None:
    """A thread whose idle connection died is at most once in the way."""
    sender, recipient = make_device(), make_device()
    assert submit_surely(cut, sender, recipient).status_code == 201
    with connect(autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            [NAME],
        )
    answers = [cut.submit(sender, recipient).status_code for _ in range(60)]
    assert set(answers) <= {201, 503}
    assert answers.count(503) <= WEB_THREADS
    assert_sound()
