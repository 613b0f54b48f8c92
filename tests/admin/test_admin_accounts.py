"""Who may use the console: enabling, disabling, and that somebody always can."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import Client

from adminui.models import AuditEntry
from adminui.services.admins import AdminError, admin_create, admin_disable
from adminui.services.provisioners import provisioner_create, provisioner_rotate
from tests.admin.commands import answer, manage, said
from tests.client import make_device
from tests.conftest import PROJECT, test_database_url


def refused(*arguments: str) -> str:
    with pytest.raises(CommandError) as refusal:
        answer(*arguments)
    assert refusal.value.returncode == 1
    return str(refusal.value)


@pytest.fixture
def ada_and_bob() -> None:
    for name in ("ada", "bob"):
        answer("admin", "create", "--username", name)


def told() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("action", "target"))[2:]


@pytest.mark.usefixtures("ada_and_bob")
def test_a_disabled_admin_is_out_at_once_and_comes_back_when_enabled(client: Client) -> None:
    client.force_login(User.objects.get(username="bob"))
    assert client.get("/admin/").status_code == 200
    facts = {"username": "bob", "state": "disabled", "changed": True}
    assert answer("admin", "disable", "--username", "bob") == facts
    assert client.get("/admin/").status_code == 302
    assert answer("admin", "enable", "--username", "bob")["state"] == "active"
    assert client.get("/admin/").status_code == 200
    assert told() == [("admin.disable", "bob"), ("admin.enable", "bob")]


@pytest.mark.usefixtures("ada_and_bob")
def test_what_is_so_already_is_said_and_not_audited() -> None:
    assert said("admin", "enable", "--username", "bob") == "bob is active already.\n"
    assert told() == []


@pytest.mark.usefixtures("ada_and_bob")
def test_a_password_for_a_disabled_account_is_refused_and_names_the_way() -> None:
    answer("admin", "disable", "--username", "bob")
    before = User.objects.get(username="bob").password
    why = refused("admin", "reset-password", "--username", "bob")
    assert why == "bob is disabled and could not sign in: `manage.py admin enable` first."
    assert User.objects.get(username="bob").password == before


@pytest.mark.usefixtures("ada_and_bob")
def test_the_last_who_may_do_everything_stays() -> None:
    answer("admin", "disable", "--username", "bob")
    User.objects.create_user("eve", is_staff=True)  # is active, and may do nothing
    why = refused("admin", "disable", "--username", "ada")
    assert why == "ada is the last who may do everything: make another first."
    assert User.objects.get(username="ada").is_active
    assert refused("admin", "disable", "--username", "nobody") == "There is no admin named nobody."


def wait_for_waiters(count: int) -> None:
    """Until so many connections wait for a lock."""
    deadline = time.monotonic() + 10
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE NOT granted AND datname = current_database()"
            )
            if cursor.fetchone()[0] >= count:
                return
            time.sleep(0.02)
    raise AssertionError("nobody waits")


@pytest.mark.usefixtures("ada_and_bob")
def test_two_who_end_each_other_at_once_leave_one() -> None:
    for _ in range(5):
        refusals = list[str]()

        def end(name: str) -> None:
            try:
                admin_disable(actor="a", username=name)
            except AdminError as error:
                refusals.append(str(error))  # noqa: B023 - joined below
            finally:
                connection.close()

        threads = [threading.Thread(target=end, args=(name,)) for name in ("ada", "bob")]
        # Both stand before the first row they want, and go on together.
        with transaction.atomic():
            list(User.objects.select_for_update())
            for thread in threads:
                thread.start()
            wait_for_waiters(2)
        for thread in threads:
            thread.join(30)
        assert len(refusals) == User.objects.filter(is_active=True).count() == 1
        User.objects.update(is_active=True)


@pytest.mark.usefixtures("ada_and_bob")
def test_the_list_has_everybody_and_nothing_secret() -> None:
    answer("admin", "disable", "--username", "bob")
    ada, bob = answer("admin", "list")
    assert (ada["username"], ada["state"], ada["role"]) == ("ada", "active", "owner")
    assert (bob["username"], bob["state"]) == ("bob", "disabled")
    assert set(ada) == {"username", "email", "state", "role", "date_joined", "last_login"}
    shown = said("admin", "list")
    assert "argon2" not in shown
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["ada", "bob"]


@pytest.mark.parametrize(
    ("command", "instead"),
    [("createsuperuser", "admin create"), ("changepassword", "admin reset-password")],
)
def test_what_django_would_change_unaudited_is_refused(command: str, instead: str) -> None:
    done = manage(command, "--no-input", "--username", "eve")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: The audit log has to learn of this: use `manage.py {instead} --username NAME`.\n"
    )
    assert not User.objects.exists()


def check(text: str) -> subprocess.CompletedProcess[str]:
    """`manage.py credentials_check --json` with this on stdin."""
    return subprocess.run(
        [sys.executable, "manage.py", "credentials_check", "--json"],
        cwd=PROJECT,
        env={**os.environ, "DATABASE_URL": test_database_url()},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_remembered_credentials_hold_until_they_are_changed() -> None:
    admin = admin_create(actor="a", username="ada")
    token = provisioner_create(actor="a", name="trial").token
    asked = {
        "admin_user": "ada", "admin_password": admin.password, "provisioner_token": token,
    }  # fmt: skip
    assert json.loads(check(json.dumps(asked)).stdout) == {"admin": True, "provisioner": True}
    provisioner_rotate(actor="a", name="trial")
    User.objects.update(is_active=False)
    assert json.loads(check(json.dumps(asked)).stdout) == {"admin": False, "provisioner": False}
    a_device = {"provisioner_token": make_device().token}
    assert json.loads(check(json.dumps(a_device)).stdout) == {"provisioner": False}


@pytest.mark.parametrize("text", ["", "[]", '{"password": "x"}', '{"admin_user": 1}'])
def test_what_are_no_credentials_is_a_mistake(text: str) -> None:
    done = check(text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: What comes on stdin is not an object of credentials")
