"""Where a walk stands: the opaque token (PROTOCOL section 3, DESIGN section 6)."""

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests import factories
from tests.api.helpers import assert_problem, query, set_retention, sweep
from tests.client import Party, RelayClient, make_device
from tests.conftest import DatabaseClock, RelayProcess

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _submit(relay: RelayClient, device: Party, count: int = 1, **members: Any) -> list[str]:
    answers = [relay.submit(device, device, **members).raise_for_status() for _ in range(count)]
    return [answer.json()["message_id"] for answer in answers]


def _page(relay: RelayClient, device: Party, **query: Any) -> tuple[list[str], str, bool]:
    page = relay.pull(device, **query).raise_for_status().json()
    ids = [envelope["message_id"] for envelope in page["envelopes"]]
    return ids, page["next_cursor"], page["has_more"]


def _raw(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


# --- Walking ----------------------------------------------------------------------------------


def test_a_walk_finds_everything_once_and_in_order(relay: RelayClient) -> None:
    device = make_device()
    ids = _submit(relay, device, 10)
    found: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    sizes = []
    for _ in range(4):
        page, query["cursor"], _ = _page(relay, device, **query)
        found += page
        sizes.append(len(page))
    assert (sizes, found) == ([3, 3, 3, 1], ids)


def test_the_cursor_of_an_empty_page_finds_what_comes_later(relay: RelayClient) -> None:
    device = make_device()
    found, cursor, has_more = _page(relay, device)
    assert (found, has_more) == ([], False)
    for _ in range(3):  # polled, each time from the newest token
        assert _page(relay, device, cursor=cursor)[0] == []
        _, cursor, _ = _page(relay, device, cursor=cursor)
    ids = _submit(relay, device, 2)
    assert _page(relay, device, cursor=cursor)[0] == ids


def test_an_old_cursor_goes_on_where_it_stood_however_often(relay: RelayClient) -> None:
    device = make_device()
    ids = _submit(relay, device, 4)
    _, cursor, _ = _page(relay, device, limit=2)
    later = _submit(relay, device, 1)
    for _ in range(3):
        assert _page(relay, device, cursor=cursor)[0] == ids[2:] + later


def test_nothing_is_skipped_or_repeated_whatever_happens_in_between(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    start = _submit(relay, device, 6)
    short = _submit(relay, device, 2, ttl_seconds=60)
    more = _submit(relay, device, 2)
    first, cursor, _ = _page(relay, device, limit=3)
    assert first == start[:3]
    relay.acknowledge(device, [start[1], start[2], start[3]]).raise_for_status()
    sweep()
    late = _submit(relay, device, 1)
    second, cursor, has_more = _page(relay, device, limit=3, cursor=cursor)
    assert (second, has_more) == ([start[4], start[5], short[0]], True)
    clock.shift(61 * SECOND)
    sweep()
    third, cursor, has_more = _page(relay, device, limit=3, cursor=cursor)
    assert (third, has_more) == (more + late, False)
    assert _page(relay, device, cursor=cursor)[0] == []


def test_a_cursor_depends_on_no_row(relay: RelayClient, clock: DatabaseClock) -> None:
    device = make_device()
    ids = _submit(relay, device, 3)
    _, cursor, _ = _page(relay, device)
    relay.acknowledge(device, ids).raise_for_status()
    clock.shift(9 * DAY)
    sweep()
    assert query("SELECT count(*) FROM relay_envelope") == [(0,)]
    later = _submit(relay, device, 2)
    assert _page(relay, device, cursor=cursor)[0] == later


def test_a_cursor_outlives_the_credential(relay: RelayClient) -> None:
    device, heir = make_device(), make_device()
    _submit(relay, device, 2)
    _, cursor, _ = _page(relay, device, limit=1)
    query(
        "UPDATE relay_device SET token_sha256 = "
        "(SELECT token_sha256 FROM relay_device WHERE device_id = %s) WHERE device_id = %s",
        *(heir.id, device.id),
    )
    rotated = Party(device.id, f"rld1.{device.id}.{heir.token.split('.')[2]}")
    assert len(_page(relay, rotated, cursor=cursor)[0]) == 1


# --- Not a token of this server for this device ------------------------------------------------


def test_a_token_with_any_character_changed_is_invalid(relay: RelayClient) -> None:
    device = make_device()
    _submit(relay, device, 2)
    _, token, _ = _page(relay, device, limit=1)
    for place, sign in enumerate(token):
        other = ALPHABET[(ALPHABET.index(sign) + 1) % 64]
        changed = token[:place] + other + token[place + 1 :]
        assert_problem(relay.pull(device, cursor=changed), "CURSOR_INVALID")
    assert relay.pull(device, cursor=token).status_code == 200


def test_a_token_with_any_byte_flipped_is_invalid(relay: RelayClient) -> None:
    device = make_device()
    _, token, _ = _page(relay, device)
    raw = _raw(token)
    for place in range(len(raw)):
        flipped = raw[:place] + bytes([raw[place] ^ 0x80]) + raw[place + 1 :]
        text = base64.urlsafe_b64encode(flipped).rstrip(b"=").decode()
        assert_problem(relay.pull(device, cursor=text), "CURSOR_INVALID")


def test_a_token_cut_short_or_made_longer_is_invalid(relay: RelayClient) -> None:
    device = make_device()
    _, token, _ = _page(relay, device)
    for length in range(len(token)):
        assert_problem(relay.pull(device, cursor=token[:length]), "CURSOR_INVALID")
    for longer in (token + "A", token + "=", token + "==", " " + token, token + "\n", token * 2):
        assert_problem(relay.pull(device, cursor=longer), "CURSOR_INVALID")


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "null", "0", "1", "é", "\x00", "=" * 100, "A" * 80, "_" * 120, "A" * 8_000),
        *("%00", "' OR 1=1", "2031-05-01T12:00:00Z", "rld1.a.b", "../../x", "{}", "\ufffd"),
    ],
)
def test_what_is_no_token_is_invalid(relay: RelayClient, text: str) -> None:
    assert_problem(relay.pull(make_device(), cursor=text), "CURSOR_INVALID")


def test_random_tokens_of_the_right_length_are_invalid(relay: RelayClient) -> None:
    device = make_device()
    raw = _raw(_page(relay, device)[1])
    for _ in range(20):
        made_up = raw[:2] + secrets.token_bytes(len(raw) - 2)
        text = base64.urlsafe_b64encode(made_up).rstrip(b"=").decode()
        assert_problem(relay.pull(device, cursor=text), "CURSOR_INVALID")


def test_another_devices_token_is_invalid(relay: RelayClient) -> None:
    one, two = make_device(), make_device()
    for device in (one, two):
        _submit(relay, device, 2)
    _, token, _ = _page(relay, one, limit=1)
    assert_problem(relay.pull(two, cursor=token), "CURSOR_INVALID")


# --- Genuine, but over ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "works"),
    [(30 * DAY - SECOND, True), (30 * DAY + SECOND, False), (400 * DAY, False)],
)
def test_a_token_lasts_30_days(
    relay: RelayClient, clock: DatabaseClock, age: timedelta, works: bool
) -> None:
    device = make_device()
    set_retention(ttl_days=30)
    _submit(relay, device, 1)
    _, token, _ = _page(relay, device)
    clock.shift(age)
    later = _submit(relay, device, 1)
    if works:
        assert _page(relay, device, cursor=token)[0] == later
    else:
        assert_problem(relay.pull(device, cursor=token), "CURSOR_STALE")
        assert later[0] in _page(relay, device)[0]


def test_a_token_that_is_polled_from_is_renewed(relay: RelayClient, clock: DatabaseClock) -> None:
    device = make_device()
    _, token, _ = _page(relay, device)
    for days in (20, 40, 60):
        clock.shift(days * DAY)
        _, token, _ = _page(relay, device, cursor=token)


def test_a_token_from_before_a_restore_is_stale(relay: RelayClient) -> None:
    device = make_device()
    ids = _submit(relay, device, 2)
    _, token, _ = _page(relay, device, limit=1)
    query("UPDATE relay_instance SET epoch = %s", uuid4())
    assert_problem(relay.pull(device, cursor=token), "CURSOR_STALE")
    found, fresh, _ = _page(relay, device)
    assert found == ids
    assert _page(relay, device, cursor=fresh)[0] == []


def test_a_token_ahead_of_the_queue_is_stale(relay: RelayClient) -> None:
    device = make_device()
    ids = _submit(relay, device, 3)
    _, at_one, _ = _page(relay, device, limit=1)
    _, at_three, _ = _page(relay, device)
    # The queue as it was after its second envelope.
    query("DELETE FROM relay_envelope WHERE seq = 3")
    query("DELETE FROM relay_body WHERE seq = 3")
    query("UPDATE quotas_queueusage SET next_seq = 3, pending_count = 2")
    assert_problem(relay.pull(device, cursor=at_three), "CURSOR_STALE")
    assert _page(relay, device, cursor=at_one)[0] == [ids[1]]
    _, at_two, _ = _page(relay, device)
    later = _submit(relay, device, 1)
    assert _page(relay, device, cursor=at_two)[0] == later


def test_tampering_is_invalid_and_never_stale(relay: RelayClient, clock: DatabaseClock) -> None:
    device, other = make_device(), make_device()
    _, token, _ = _page(relay, device)
    clock.shift(31 * DAY)
    query("UPDATE relay_instance SET epoch = %s", uuid4())
    assert_problem(relay.pull(device, cursor=token), "CURSOR_STALE")
    assert_problem(relay.pull(other, cursor=token), "CURSOR_INVALID")
    changed = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    assert_problem(relay.pull(device, cursor=changed), "CURSOR_INVALID")


# --- What a token shows -----------------------------------------------------------------------


def test_two_tokens_of_one_position_have_nothing_in_common(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    clock.freeze("2031-05-01T12:00:00Z")
    tokens = [_raw(_page(relay, device)[1]) for _ in range(20)]
    assert len(set(tokens)) == 20
    constant = [
        place for place in range(len(tokens[0])) if len({raw[place] for raw in tokens}) == 1
    ]
    assert constant == [0, 1]  # the format and the key, the same for all devices


def test_a_token_shows_neither_position_nor_device_nor_time(relay: RelayClient) -> None:
    device = make_device()
    lengths = set()
    for position in (1, 255, 256, 70_000, 2**40):
        query("UPDATE quotas_queueusage SET next_seq = %s", position)
        factories.store(device.id)
        token = _page(relay, device, limit=100)[1]
        lengths.add(len(token))
        for shown in (position.to_bytes(8), position.to_bytes(8, "little"), device.id.bytes):
            assert shown not in _raw(token)
        assert str(position) not in token or position < 1000
        assert device.id.hex not in token
    assert len(lengths) == 1


# --- Keys -------------------------------------------------------------------------------------

PURPOSES = ("cursor", "fingerprint", "scope", "wake", "pseudonym", "rate")


def _key_file(path: Path, keys: dict[str, str], current: int, retired: list[int]) -> Path:
    rings = {purpose: {"current": 1, "keys": keys} for purpose in PURPOSES}
    rings["cursor"] = {"current": current, "keys": keys, "retired": retired}  # type: ignore[dict-item]
    path.write_text(json.dumps(rings))
    return path


@contextmanager
def _relay_with(path: Path) -> Iterator[RelayClient]:
    process = RelayProcess(path.with_suffix(".log"), RELAY_KEYS_FILE=str(path))
    process.start()
    try:
        with RelayClient(process.url) as client:
            yield client
    finally:
        process.stop()


def test_tokens_under_the_previous_key_work_until_it_is_retired(
    tmp_path: Path, relay: RelayClient
) -> None:
    keys = {name: secrets.token_urlsafe(32) for name in ("1", "2")}
    device = make_device()
    with _relay_with(_key_file(tmp_path / "before.json", keys, 1, [])) as before:
        ids = _submit(before, device, 2)
        _, old, _ = _page(before, device, limit=1)
    with _relay_with(_key_file(tmp_path / "rotated.json", keys, 2, [])) as rotated:
        assert _page(rotated, device, cursor=old)[0] == ids[1:]
        _, new, _ = _page(rotated, device, limit=1)
        assert _page(rotated, device, cursor=new)[0] == ids[1:]
    with _relay_with(_key_file(tmp_path / "retired.json", keys, 2, [1])) as retired:
        assert_problem(retired.pull(device, cursor=old), "CURSOR_STALE")
        assert _page(retired, device, cursor=new)[0] == ids[1:]
        forged = old[:-2] + ("A" if old[-2] != "A" else "B") + old[-1]
        assert_problem(retired.pull(device, cursor=forged), "CURSOR_INVALID")
    assert_problem(relay.pull(device, cursor=new), "CURSOR_INVALID")
