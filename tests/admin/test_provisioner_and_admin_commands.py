"""`provisioner` and `admin`: secrets are shown once, stored as hashes, and never told."""

import base64
import hashlib
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import connection

from adminui.models import AuditEntry
from adminui.selectors.audit import verify_chain
from adminui.services import admins as admins_service
from adminui.services import provisioners as provisioners_service
from adminui.services.admins import AdminError, admin_create
from adminui.services.provisioners import provisioner_create
from relay.models import Provisioner
from relay.selectors import credentials
from relay.services.provisioners import ProvisionerError
from tests.admin.commands import answer, manage, said
from tests.client import Party, RelayClient


def secret_of(token: str) -> bytes:
    """The 32 bytes behind a token, decoded by hand."""
    prefix, identity, text = token.split(".")
    assert prefix == "rlp1"
    assert str(UUID(identity)) == identity
    assert len(text) == 43
    return base64.urlsafe_b64decode(text + "=")


def audited() -> list[tuple[str, str, Any, Any]]:
    assert verify_chain().ok
    return list(
        AuditEntry.objects.order_by("id").values_list("action", "target", "before", "after")
    )


def raw_audit_rows() -> str:
    """Everything that the audit table holds, as text; bytea as hex."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(entry::text, ' ') FROM adminui_auditentry AS entry")
        return str(cursor.fetchone()[0])


# --- Provisioners -----------------------------------------------------------------------------


def test_only_the_sha256_of_the_secrets_32_bytes_is_stored() -> None:
    made = answer("provisioner", "create", "--name", "identity")
    assert set(made) == {"provisioner_id", "name", "token"}
    assert made["name"] == "identity"
    row = Provisioner.objects.get()
    assert str(row.provisioner_id) == made["provisioner_id"] == made["token"].split(".")[1]
    secret = secret_of(made["token"])
    assert len(secret) == 32
    assert bytes(row.token_sha256) == hashlib.sha256(secret).digest()


def test_a_token_works_until_it_is_rotated_and_the_new_one_until_it_is_revoked(
    relay: RelayClient,
) -> None:
    def status(token: str) -> int:
        caller = Party(UUID(token.split(".")[1]), token)
        body = {"token_sha256": "ab" * 32}
        return relay.call("PUT", f"/v1/devices/{uuid4()}", caller, json=body).status_code

    first = answer("provisioner", "create", "--name", "identity")
    assert status(first["token"]) == 201
    second = answer("provisioner", "rotate", "--name", "identity")
    assert second["provisioner_id"] == first["provisioner_id"]
    assert second["token"] != first["token"]
    assert (status(first["token"]), status(second["token"])) == (401, 201)
    assert answer("provisioner", "revoke", "--name", "identity")["name"] == "identity"
    assert (status(first["token"]), status(second["token"])) == (401, 401)


def test_the_stored_hash_is_no_token() -> None:
    made = answer("provisioner", "create", "--name", "identity")
    digest = bytes(Provisioner.objects.get().token_sha256)
    forged = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert credentials.authenticate(f"rlp1.{made['provisioner_id']}.{forged}") is None
    assert credentials.authenticate(made["token"]) is not None


def test_list_shows_every_provisioner_and_nothing_secret() -> None:
    assert answer("provisioner", "list") == []
    assert said("provisioner", "list").strip() == "None yet."
    made = answer("provisioner", "create", "--name", "zeta [bold]")
    answer("provisioner", "create", "--name", "alpha")
    answer("provisioner", "revoke", "--name", "alpha")
    alpha, zeta = answer("provisioner", "list")
    assert (alpha["name"], alpha["state"]) == ("alpha", "revoked")
    assert (zeta["name"], zeta["state"]) == ("zeta [bold]", "active")
    assert set(zeta) == {
        "provisioner_id", "name", "state", "created_at", "rotated_at", "revoked_at",
    }  # fmt: skip
    assert (zeta["rotated_at"], alpha["revoked_at"][-1]) == (None, "Z")
    shown = said("provisioner", "list")
    assert "zeta [bold]" in shown
    assert made["token"].split(".")[2] not in shown


def test_every_change_is_told_without_anything_secret() -> None:
    made = [answer("provisioner", action, "--name", "identity") for action in ("create", "rotate")]
    answer("provisioner", "revoke", "--name", "identity")
    known = {"provisioner_id": made[0]["provisioner_id"]}
    assert audited() == [
        ("provisioner.create", "identity", None, known),
        ("provisioner.rotate", "identity", None, known),
        ("provisioner.revoke", "identity", None, None),
    ]
    rows = raw_audit_rows()
    for issued in made:
        secret = secret_of(issued["token"])
        digest = hashlib.sha256(secret)
        for hidden in (
            *(issued["token"].split(".")[2], secret.hex(), digest.hexdigest()),
            base64.b64encode(digest.digest()).decode(),
        ):
            assert hidden not in rows


@pytest.mark.parametrize("action", ["create", "rotate", "revoke"])
def test_a_change_whose_audit_entry_fails_does_not_happen(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if action != "create":
        answer("provisioner", "create", "--name", "identity")
    before = list(Provisioner.objects.values())

    def fails(**_: Any) -> None:
        assert list(Provisioner.objects.values()) != before  # done, and about to be undone
        raise RuntimeError("no room for the entry")

    monkeypatch.setattr(provisioners_service, "audit_write", fails)
    with pytest.raises(RuntimeError, match="no room"):
        answer("provisioner", action, "--name", "identity")
    assert list(Provisioner.objects.values()) == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("create", "--name", "taken"), "A provisioner named taken exists."),
        (("create", "--name", ""), "A name has 1 to 100 printable characters."),
        (("create", "--name", "x" * 101), "A name has 1 to 100 printable characters."),
        (("create", "--name", "two\nlines"), "A name has 1 to 100 printable characters."),
        (("rotate", "--name", "nobody"), "There is no provisioner named nobody."),
        (("revoke", "--name", "nobody"), "There is no provisioner named nobody."),
        (("rotate", "--name", "gone"), "The provisioner gone is revoked."),
        (("revoke", "--name", "gone"), "The provisioner gone is revoked."),
        (
            ("create", "--name", "gone"),
            "A provisioner named gone exists; it is revoked, and its name stays taken.",
        ),
    ],
)
def test_what_cannot_be_done_to_a_provisioner_is_refused(
    arguments: tuple[str, ...], why: str
) -> None:
    for name in ("taken", "gone"):
        answer("provisioner", "create", "--name", name)
    answer("provisioner", "revoke", "--name", "gone")
    with pytest.raises(CommandError) as refusal:
        answer("provisioner", *arguments)
    assert str(refusal.value) == why
    assert refusal.value.returncode == (2 if why.startswith("A name has") else 1)
    assert len(audited()) == 3


def run_twice_at_once(work: Any, expected: type[Exception]) -> list[Exception]:
    """Run `work` in two threads at once; returns the refusals."""
    barrier, refusals = threading.Barrier(2), list[Exception]()
    surprises: list[BaseException] = []

    def run() -> None:
        try:
            barrier.wait(30)
            work()
        except expected as error:
            refusals.append(error)
        except BaseException as error:
            surprises.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert surprises == []
    return refusals


def test_two_provisioners_of_one_name_at_once_are_one_and_a_refusal() -> None:
    for turn in range(5):
        name = f"name {turn}"
        refusals = run_twice_at_once(
            lambda name=name: provisioner_create(actor="a", name=name), ProvisionerError
        )
        assert [str(error) for error in refusals] == [f"A provisioner named {name} exists."]
    assert Provisioner.objects.count() == len(audited()) == 5


def test_the_token_alone_is_on_stdout() -> None:
    done = manage("provisioner", "create", "--name", "identity")
    assert done.code == 0
    assert hashlib.sha256(secret_of(done.stdout.strip())).digest() == bytes(
        Provisioner.objects.get().token_sha256
    )
    assert done.stderr.startswith("Keep the token: ")
    again = manage("provisioner", "create", "--name", "identity", "--json")
    assert (again.code, again.stdout) == (1, "")
    assert again.stderr == "Error: A provisioner named identity exists.\n"
    assert manage("provisioner", "create").code == 2


# --- Admins -----------------------------------------------------------------------------------


def test_a_new_admin_may_do_everything_and_signs_in_with_the_password_shown() -> None:
    made = answer("admin", "create", "--username", "ada", "--email", "ada@example.org")
    assert set(made) == {"username", "password"}
    assert len(made["password"]) >= 20
    user = User.objects.get()
    assert (user.username, user.email) == ("ada", "ada@example.org")
    assert (user.is_active, user.is_staff, user.is_superuser) == (True, True, True)
    assert user.password.startswith("argon2$argon2id$")
    assert authenticate(username="ada", password=made["password"]) == user
    assert authenticate(username="ada", password=made["password"] + "x") is None


def test_a_reset_password_replaces_the_old_one_and_ends_sessions(client: Any) -> None:
    old = answer("admin", "create", "--username", "ada")["password"]
    client.force_login(User.objects.get())
    assert client.get("/admin/").status_code == 200
    new = answer("admin", "reset-password", "--username", "ada")["password"]
    assert len(new) >= 20
    assert new != old
    assert authenticate(username="ada", password=old) is None
    assert authenticate(username="ada", password=new) == User.objects.get()
    assert client.get("/admin/").status_code == 302


def test_admins_are_told_in_the_audit_log_without_their_passwords() -> None:
    passwords = [
        answer("admin", "create", "--username", "ada")["password"],
        answer("admin", "reset-password", "--username", "ada")["password"],
    ]
    assert audited() == [
        ("admin.create", "ada", None, {"role": "owner"}),
        ("admin.reset_password", "ada", None, None),
    ]
    rows = raw_audit_rows()
    assert not [password for password in passwords if password in rows]
    assert "argon2" not in rows


@pytest.mark.parametrize("action", ["create", "reset-password"])
def test_an_admin_whose_audit_entry_fails_stays_as_it_was(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if action != "create":
        answer("admin", "create", "--username", "ada")
    before = list(User.objects.values())

    def fails(**_: Any) -> None:
        assert list(User.objects.values()) != before
        raise RuntimeError("no room for the entry")

    monkeypatch.setattr(admins_service, "audit_write", fails)
    with pytest.raises(RuntimeError, match="no room"):
        answer("admin", action, "--username", "ada")
    assert list(User.objects.values()) == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("create", "--username", "ada"), "An admin named ada exists."),
        (("create", "--username", "ADA"), "An admin named ADA exists."),
        (("create", "--username", "ａｄａ"), "An admin named ada exists."),
        (("create", "--username", ""), "A username has 1 to 150"),
        (("create", "--username", "x" * 151), "A username has 1 to 150"),
        (("create", "--username", "a b"), "A username has 1 to 150"),
        (("create", "--username", "a\0b"), "A username has 1 to 150"),
        (("create", "--username", "bob", "--email", "bob"), "bob is not an email address."),
        (("reset-password", "--username", "bob"), "There is no admin named bob."),
    ],
)
def test_what_cannot_be_done_to_an_admin_is_refused(arguments: tuple[str, ...], why: str) -> None:
    answer("admin", "create", "--username", "ada")
    with pytest.raises(CommandError) as refusal:
        answer("admin", *arguments)
    assert str(refusal.value).startswith(why)
    is_mistake = why.startswith("A username has") or why.endswith("email address.")
    assert refusal.value.returncode == (2 if is_mistake else 1)
    assert User.objects.count() == len(audited()) == 1


def test_two_admins_of_one_name_at_once_are_one_and_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Hashing takes its time; the two meet again after it, right before their transactions.
    barrier = threading.Barrier(2)

    def hash_together(password: str) -> str:
        barrier.wait(30)
        return "!"

    monkeypatch.setattr(admins_service, "make_password", hash_together)
    for turn in range(5):
        name = f"ada{turn}"
        refusals = run_twice_at_once(
            lambda name=name: admin_create(actor="a", username=name), AdminError
        )
        assert [str(error) for error in refusals] == [f"An admin named {name} exists."]
    assert User.objects.count() == len(audited()) == 5


def test_admin_commands_as_an_operator_runs_them() -> None:
    made = manage("admin", "create", "--username", "ada", "--json")
    assert (made.code, made.stderr) == (0, "")
    assert authenticate(username="ada", password=made.json["password"]) is not None
    again = manage("admin", "create", "--username", "ada", "--json")
    assert (again.code, again.stdout) == (1, "")
    assert again.stderr == "Error: An admin named ada exists.\n"
    reset = manage("admin", "reset-password", "--username", "ada")
    assert reset.code == 0
    assert reset.stderr.startswith("Keep the password: ")
    row = reset.stdout.splitlines()[-1].split()
    assert authenticate(username="ada", password=row[1]) is not None
