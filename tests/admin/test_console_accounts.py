"""Accounts in the console: nobody locks it up, and who signs in is told."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from adminui import forms
from adminui.models import AuditEntry
from adminui.services.admins import admin_create, owners_locked
from outbox.models import SweepRun
from tests.admin.test_console import sign_in


@pytest.fixture
def owner(client: Client) -> Client:
    """A signed-in client of an admin who may do everything."""
    admin_create(actor="command:root", username="ada")
    client.force_login(User.objects.get(username="ada"))
    return client


def change(client: Client, username: str, *ticked: str) -> Any:
    """The answer to the account's form with only these boxes ticked."""
    account = User.objects.get(username=username)
    fields = {"username": username, "email": "", **dict.fromkeys(ticked, "on")}
    return client.post(f"/admin/auth/user/{account.pk}/change/", fields)


@pytest.mark.parametrize("ticked", [(), ("is_active",), ("is_superuser",)])
def test_nobody_ends_their_own_rights(owner: Client, ticked: tuple[str, ...]) -> None:
    admin_create(actor="command:root", username="bob")  # so that ada is not the last
    page = change(owner, "ada", *ticked)
    assert page.status_code == 200
    assert b"Your own rights are another admin" in page.content
    ada = User.objects.get(username="ada")
    assert (ada.is_active, ada.is_superuser) == (True, True)


def test_another_account_can_be_ended_and_keeps_its_way_in_for_later(owner: Client) -> None:
    admin_create(actor="command:root", username="bob")
    assert change(owner, "bob", "is_superuser").status_code == 302
    bob = User.objects.get(username="bob")
    assert (bob.is_active, bob.is_staff) == (False, True)


def test_whoever_became_the_last_meanwhile_stays(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin_create(actor="command:root", username="bob")

    def after_a_command_ended_ada() -> set[int]:
        User.objects.filter(username="ada").update(is_active=False)
        return owners_locked()

    monkeypatch.setattr(forms, "owners_locked", after_a_command_ended_ada)
    page = change(owner, "bob", "is_superuser")
    assert page.status_code == 200
    assert b"bob is the last who may do everything" in page.content
    assert User.objects.get(username="bob").is_active


def test_a_box_that_locks_people_out_is_not_there_and_the_others_are_explained(
    owner: Client,
) -> None:
    ada = User.objects.get(username="ada")
    page = owner.get(f"/admin/auth/user/{ada.pk}/change/").content.decode()
    assert 'name="is_staff"' not in page
    assert "May do everything. Unticked, signing in shows nothing." in page
    assert "May sign in. Unticked, the account stays" in page


def test_a_sign_in_is_audited_and_a_refused_one_is_a_log_line_without_a_name(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    password = admin_create(actor="command:root", username="ada").password
    assert sign_in(client, "ada", "hunter2hunter2").status_code == 200
    assert sign_in(client, "ada", password).status_code == 302
    entry = AuditEntry.objects.order_by("-id")[0]
    assert (entry.actor, entry.action, entry.target) == ("admin:ada", "admin.sign_in", "ada")
    assert AuditEntry.objects.filter(action="admin.sign_in").count() == 1
    refused = [each for each in caplog.records if each.msg == "console.sign_in_refused"]
    assert len(refused) == 1
    assert set(refused[0].relay_fields) == {"request_id"}  # type: ignore[attr-defined]


def test_a_row_that_is_not_there_is_told_in_own_words(owner: Client) -> None:
    page = owner.get("/admin/adminui/auditentry/999/change/", follow=True).content.decode()
    assert "There is no audit entry with this id." in page
    assert "deleted" not in page


def test_times_are_of_one_form_and_a_sum_says_so(owner: Client) -> None:
    User.objects.update(date_joined="2026-12-01T16:12:18Z", last_login="2026-12-01T16:12:19Z")
    SweepRun.objects.create(name="expire", rows=3)
    ada = User.objects.get()
    assert "2026-12-01 16:12:19 UTC" in owner.get("/admin/auth/user/").content.decode()
    page = owner.get(f"/admin/auth/user/{ada.pk}/change/").content.decode()
    assert "2026-12-01 16:12:18 UTC" in page
    assert "all runs together" in owner.get("/admin/outbox/sweeprun/").content.decode()


def test_a_host_that_is_not_ours_is_told_to_people_as_text(client: Client) -> None:
    answer = client.get("/admin/login/", headers={"host": "elsewhere.example"})
    assert answer.status_code == 400
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert "ALLOWED_HOSTS" in answer.content.decode()
    assert "elsewhere" not in answer.content.decode()
