"""The console: who gets in, what it shows, what it never shows, and its security headers."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from adminui.models import AuditEntry
from adminui.services import audit
from adminui.services.admins import admin_create
from adminui.services.limits import limits_set
from adminui.services.provisioners import provisioner_create
from adminui.services.retention import retention_set
from adminui.site import site
from outbox.models import SweepRun
from relay.models import Provisioner

READ_ONLY = {
    "adminui/auditentry": "1",
    "quotas/limitpolicy": "2",
    "relay/retentionpolicy": "2",
    "relay/provisioner": None,
    "outbox/sweeprun": "expiry",
}


@pytest.fixture
def owner(client: Client) -> Client:
    """A signed-in client of an admin who may do everything."""
    issued = admin_create(actor="command:root", username="ada")
    assert client.login(username="ada", password=issued.password)
    return client


@pytest.fixture
def furnished() -> dict[str, str]:
    """One row of everything that is only to be read; page by id."""
    limits_set(
        actor="command:root",
        reason="smaller <b>queues</b>",
        changes={"pending_count": 500, "address_rate": 2_000},
    )
    retention_set(actor="command:root", reason="longer", changes={"ttl_days": 14})
    issued = provisioner_create(actor="command:root", name="identity")
    SweepRun.objects.create(name="expiry", rows=3)
    return {page: key or str(issued.provisioner_id) for page, key in READ_ONLY.items()}


def sign_in(client: Client, username: str, password: str) -> Any:
    """The answer to the form."""
    fields = {"username": username, "password": password, "next": "/admin/"}
    return client.post("/admin/login/", fields)


# --- Who gets in ------------------------------------------------------------------------------


def test_a_visitor_is_sent_to_the_login_page_and_back_after_it(client: Client) -> None:
    issued = admin_create(actor="command:root", username="ada")
    sent = client.get("/admin/adminui/auditentry/")
    assert sent.status_code == 302
    assert sent["Location"] == "/admin/login/?next=/admin/adminui/auditentry/"
    page = client.get(sent["Location"])
    assert b"Relay" in page.content
    fields = {"username": "ada", "password": issued.password, "next": "/admin/adminui/auditentry/"}
    done = client.post("/admin/login/", fields)
    assert (done.status_code, done["Location"]) == (302, "/admin/adminui/auditentry/")
    assert client.get("/admin/adminui/auditentry/").status_code == 200


def test_a_wrong_password_does_not_get_in(client: Client) -> None:
    admin_create(actor="command:root", username="ada")
    page = client.post("/admin/login/", {"username": "ada", "password": "wrong"})
    assert page.status_code == 200
    assert b"Please enter the correct username and password" in page.content
    assert client.get("/admin/").status_code == 302


def test_a_form_without_its_csrf_token_is_refused() -> None:
    client = Client(enforce_csrf_checks=True)
    issued = admin_create(actor="command:root", username="ada")
    fields = {"username": "ada", "password": issued.password}
    assert client.post("/admin/login/", fields).status_code == 403
    page = client.get("/admin/login/").content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    done = client.post("/admin/login/", {**fields, "csrfmiddlewaretoken": token.group(1)})
    assert done.status_code == 302


def test_an_account_that_is_no_staff_does_not_get_in(client: Client) -> None:
    User.objects.create_user("eve", password="a password of eve's")
    assert client.login(username="eve", password="a password of eve's")
    assert client.get("/admin/").status_code == 302


def test_staff_without_rights_sees_no_accounts(client: Client, owner: Client) -> None:
    User.objects.create_user("eve", password="a password of eve's", is_staff=True)
    other = Client()
    assert other.login(username="eve", password="a password of eve's")
    assert other.get("/admin/").status_code == 200
    assert other.get("/admin/auth/user/").status_code == 403
    assert other.get("/admin/auth/user/add/").status_code == 403
    assert other.get("/admin/adminui/auditentry/").status_code == 403


# --- What it shows ----------------------------------------------------------------------------


def test_every_page_is_there_and_none_can_change_a_thing(
    owner: Client, furnished: dict[str, str]
) -> None:
    for page, key in furnished.items():
        assert owner.get(f"/admin/{page}/").status_code == 200
        detail = owner.get(f"/admin/{page}/{key}/change/")
        assert detail.status_code == 200
        assert b'name="_save"' not in detail.content
        assert b"deletelink" not in detail.content
        assert owner.get(f"/admin/{page}/add/").status_code == 403
        assert owner.post(f"/admin/{page}/add/", {}).status_code == 403
        assert owner.post(f"/admin/{page}/{key}/change/", {"name": "x"}).status_code == 403
        assert owner.post(f"/admin/{page}/{key}/delete/", {"post": "yes"}).status_code == 403
        chosen = {"action": "delete_selected", "_selected_action": [key], "post": "yes"}
        owner.post(f"/admin/{page}/", chosen)
    assert Provisioner.objects.get().name == "identity"
    assert SweepRun.objects.count() == 1


def test_only_what_was_meant_to_be_shown_is_registered() -> None:
    shown = {model._meta.label for model in site._registry}
    assert shown == {
        "adminui.AuditEntry",
        "auth.User",
        "outbox.SweepRun",
        "quotas.LimitPolicy",
        "relay.Provisioner",
        "relay.RetentionPolicy",
    }


def test_an_audit_entry_shows_what_changed_and_its_hash_in_hex(
    owner: Client, furnished: dict[str, str]
) -> None:
    entry = AuditEntry.objects.get(action="limits.set")
    page = owner.get(f"/admin/adminui/auditentry/{entry.id}/change/").content.decode()
    assert bytes(entry.hash).hex() in page
    assert bytes(entry.previous_hash).hex() in page
    flat = re.sub(r">\s+<", "><", page)
    assert '<th scope="row">pending_count</th><td>1000</td><td>500</td>' in flat
    assert '<th scope="row">address_rate</th><td>none</td><td>2000</td>' in flat
    assert "envelope_bytes" not in page  # did not change
    assert "smaller &lt;b&gt;queues&lt;/b&gt;" in page


def test_policies_are_shown_in_words(owner: Client, furnished: dict[str, str]) -> None:
    page = owner.get("/admin/quotas/limitpolicy/").content.decode()
    assert "64 KiB" in page
    assert "64 MiB" in page
    assert "off" in page  # version 1 of the tests has no address rate
    assert "14 d" in owner.get("/admin/relay/retentionpolicy/").content.decode()


def test_no_page_shows_a_token_or_its_hash(owner: Client, furnished: dict[str, str]) -> None:
    digest = bytes(Provisioner.objects.get().token_sha256)
    for page, key in furnished.items():
        for url in (f"/admin/{page}/", f"/admin/{page}/{key}/change/"):
            text = owner.get(url).content.decode()
            assert "token" not in text.replace("csrfmiddlewaretoken", "")
            assert digest.hex() not in text
            assert str(digest) not in text


def test_the_list_of_the_log_is_not_counted_row_by_row(owner: Client) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = owner.get("/admin/adminui/auditentry/")
    assert page.context["cl"].result_count == 1
    assert not [query["sql"] for query in queries if "COUNT(" in query["sql"].upper()]


def test_the_log_can_be_searched(owner: Client, furnished: dict[str, str]) -> None:
    page = owner.get("/admin/adminui/auditentry/?q=provisioner.create")
    assert page.context["cl"].result_count == 1
    assert b"identity" in page.content


# --- Accounts ---------------------------------------------------------------------------------


def test_an_account_made_in_the_console_is_audited(owner: Client) -> None:
    password = "correct horse battery"
    fields = {"username": "bob", "password1": password, "password2": password}
    assert owner.post("/admin/auth/user/add/", fields).status_code == 302
    assert authenticate(username="bob", password=password) is not None
    entry = AuditEntry.objects.get(target="bob")
    assert (entry.actor, entry.action, entry.before) == ("admin:ada", "admin.create", None)
    assert entry.after == {
        "username": "bob",
        "is_active": True,
        "is_staff": True,
        "is_superuser": True,
    }
    assert sign_in(Client(), "bob", password).status_code == 302
    assert not LogEntry.objects.exists()


def test_a_change_of_rights_is_audited_with_both_sides(owner: Client) -> None:
    bob = User.objects.create_user("bob", password="correct horse battery")
    fields = {"username": "bob", "email": "", "is_active": "on", "is_staff": "on"}
    done = owner.post(f"/admin/auth/user/{bob.pk}/change/", fields)
    assert done.status_code == 302
    entry = AuditEntry.objects.get(target="bob")
    assert entry.action == "admin.change"
    before = {"username": "bob", "is_active": True, "is_staff": False, "is_superuser": False}
    assert (entry.before, entry.after) == (before, {**before, "is_staff": True})


def test_a_password_set_in_the_console_is_audited_without_it(owner: Client) -> None:
    bob = User.objects.create_user("bob", password="correct horse battery")
    new = "another long password"
    fields = {"password1": new, "password2": new, "usable_password": "true"}
    done = owner.post(f"/admin/auth/user/{bob.pk}/password/", fields)
    assert done.status_code == 302
    assert authenticate(username="bob", password=new) is not None
    entry = AuditEntry.objects.get(target="bob")
    assert (entry.action, entry.before) == ("admin.reset_password", None)
    assert new not in str(entry.after)


def test_a_password_whose_audit_entry_fails_stays_as_it_was(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = User.objects.create_user("bob", password="correct horse battery")

    def fails(*_: Any) -> None:
        raise RuntimeError("no room for the entry")

    monkeypatch.setattr(audit, "_append", fails)
    owner.raise_request_exception = False
    new = "another long password"
    fields = {"password1": new, "password2": new, "usable_password": "true"}
    assert owner.post(f"/admin/auth/user/{bob.pk}/password/", fields).status_code == 500
    assert authenticate(username="bob", password="correct horse battery") is not None


def test_no_account_is_deleted(owner: Client) -> None:
    bob = User.objects.create_user("bob", password="correct horse battery")
    done = owner.post(f"/admin/auth/user/{bob.pk}/delete/", {"post": "yes"})
    assert done.status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [bob.pk], "post": "yes"}
    owner.post("/admin/auth/user/", chosen)
    assert User.objects.filter(pk=bob.pk).exists()


# --- Security headers and static files --------------------------------------------------------


class Inline(HTMLParser):
    """What a page carries that the content security policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.static: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "style" or (tag == "script" and self._runs(names) and "src" not in names):
            self.found.append(f"<{tag}>")
        self.found += [name for name in names if name == "style" or name.startswith("on")]
        if names.get("href", "").lower().startswith("javascript:"):  # type: ignore[union-attr]
            self.found.append("javascript:")
        for name in ("src", "href"):
            if (names.get(name) or "").startswith("/static/"):
                self.static.add(str(names[name]))

    @staticmethod
    def _runs(names: dict[str, str | None]) -> bool:
        return names.get("type") in (None, "text/javascript", "module")


def pages(furnished: dict[str, str]) -> list[str]:
    bob = User.objects.create_user("bob", password="correct horse battery")
    return [
        "/admin/",
        "/admin/login/?next=/admin/",
        "/admin/password_change/",
        "/admin/auth/user/",
        "/admin/auth/user/add/",
        f"/admin/auth/user/{bob.pk}/change/",
        f"/admin/auth/user/{bob.pk}/password/",
        *(f"/admin/{page}/" for page in furnished),
        *(f"/admin/{page}/{key}/change/" for page, key in furnished.items()),
    ]


def test_no_page_has_inline_style_or_script_and_every_asset_is_served(
    owner: Client, furnished: dict[str, str]
) -> None:
    assets: set[str] = set()
    for url in pages(furnished):
        page = owner.get(url)
        inline = Inline()
        inline.feed(page.content.decode())
        assert (url, inline.found) == (url, [])
        assets |= inline.static
    assert "/static/adminui/console.css" in assets
    for asset in assets:
        assert owner.get(asset).status_code == 200, asset


def test_the_console_has_its_security_headers(owner: Client) -> None:
    page = owner.get("/admin/")
    policy = dict(part.strip().split(" ", 1) for part in page["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert page["X-Frame-Options"] == "DENY"
    assert page["X-Content-Type-Options"] == "nosniff"
    assert page["Referrer-Policy"] == "same-origin"
    assert "no-store" in page["Cache-Control"]


def test_cookies_are_for_the_console_alone() -> None:
    client = Client()
    issued = admin_create(actor="command:root", username="ada")
    client.get("/admin/login/")
    client.post("/admin/login/", {"username": "ada", "password": issued.password})
    assert set(client.cookies) == {"csrftoken", "sessionid"}
    for cookie in client.cookies.values():
        assert (cookie["path"], cookie["httponly"]) == ("/admin/", True)
        assert cookie["samesite"] == "Lax"


def test_static_files_come_from_the_packages_without_collectstatic(client: Client) -> None:
    assert not settings.DEBUG
    for name in ("adminui/console.css", "admin/css/base.css", "admin/js/theme.js"):
        served = client.get(f"/static/{name}")
        assert served.status_code == 200
        path = finders.find(name)
        assert path
        with open(path, "rb") as file:
            assert b"".join(served.streaming_content) == file.read()  # type: ignore[attr-defined]
        assert served["X-Content-Type-Options"] == "nosniff"
    assert client.get("/static/no/such/file.css").status_code == 404


@pytest.mark.parametrize("path", ["/static/../config/settings.py", "/static/%2e%2e/manage.py"])
def test_static_serves_nothing_else(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404
