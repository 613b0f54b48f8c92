"""What the console shows of each table. Policies, provisioners and the log are to be read here;
what changes them is a service with an audit entry."""

from collections.abc import Callable
from datetime import UTC
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Max, Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from adminui import policies
from adminui.forms import AdminAccountForm, NewAdminForm
from adminui.models import AuditEntry
from adminui.services.audit import audit_write
from adminui.site import site
from config.kernel import clock
from outbox.models import SweepRun
from quotas.models import LimitPolicy
from relay.models import Provisioner, RetentionPolicy


class InOwnWords(admin.ModelAdmin):
    """What every page of the console has in common."""

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        """Django's guess is that it was deleted; from most tables nothing ever is."""
        name = opts.verbose_name
        self.message_user(request, f"There is no {name} with this id.", messages.WARNING)
        return HttpResponseRedirect(reverse("admin:index"))


class ReadOnlyAdmin(InOwnWords):
    """To look at, not to touch; and no count of a whole table for the sake of a number."""

    actions = None
    show_full_result_count = False
    list_per_page = 50
    change_form_template = "adminui/change_form.html"

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """A row's page shows the columns of the list, unless it names its own fields."""
        return self.fields or self.list_display

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def _in_words(setting: policies.Setting) -> Callable[[Any], str]:
    @admin.display(description=setting.label, ordering=setting.name)
    def column(policy: LimitPolicy | RetentionPolicy) -> str:
        return setting.value_in_words(getattr(policy, setting.name))

    column.__name__ = f"{setting.name}_in_words"
    return column


def _moment(name: str, label: str) -> Callable[[Any], Any]:
    """A column that shows a time exact to the second, in UTC."""

    @admin.display(description=label, ordering=name)
    def column(row: Model) -> SafeString | None:
        moment = getattr(row, name)
        if moment is None:
            return None
        text = f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return format_html('<span class="moment">{}</span>', text)

    column.__name__ = f"{name}_to_the_second"
    return column


class DensePaginator(Paginator):
    """Ids of the audit log have no gaps, so the last one is the count."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[AuditEntry]", self.object_list)
        if rows.query.where:
            return super().count
        return rows.aggregate(last=Max("id"))["last"] or 0


@admin.register(AuditEntry, site=site)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Who did what, when and why."""

    list_display = ("id", _moment("at", "At"), "actor", "action", "target", "reason")
    list_display_links = ("id", "action")
    search_fields = ("actor", "action", "target")
    search_help_text = "Part of an actor, an action or a target"
    ordering = ("-id",)
    paginator = DensePaginator
    fields = (
        *("id", "at_exactly", "actor", "source", "action", "target", "reason"),
        *("differences", "event_id", "previous_hash_in_hex", "hash_in_hex"),
    )

    @admin.display(description="At")
    def at_exactly(self, entry: AuditEntry) -> str:
        """As the hash covers it."""
        return clock.rfc3339(entry.at)

    @admin.display(description="Before and after")
    def differences(self, entry: AuditEntry) -> SafeString | str:
        """The values that the change touched, side by side."""
        before, after = entry.before or {}, entry.after or {}
        names = [name for name in {**before, **after} if _cell(before, name) != _cell(after, name)]
        if not names:
            return self.get_empty_value_display()
        rows = [(name, _cell(before, name), _cell(after, name)) for name in names]
        return format_html(
            '<table class="differences"><thead><tr><th scope="col">Name</th>'
            '<th scope="col">Before</th><th scope="col">After</th></tr></thead>'
            "<tbody>{}</tbody></table>",
            format_html_join("", '<tr><th scope="row">{}</th><td>{}</td><td>{}</td></tr>', rows),
        )

    @admin.display(description="Hash")
    def hash_in_hex(self, entry: AuditEntry) -> SafeString:
        return _hex(entry.hash)

    @admin.display(description="Hash of the entry before")
    def previous_hash_in_hex(self, entry: AuditEntry) -> SafeString:
        return _hex(entry.previous_hash)


@admin.register(LimitPolicy, site=site)
class LimitPolicyAdmin(ReadOnlyAdmin):
    """Every version of the limits; the newest holds."""

    list_display = (
        *("version", _moment("created_at", "Since")),
        *(_in_words(setting) for setting in policies.LIMITS),
        "protocol_versions",
    )
    ordering = ("-version",)


@admin.register(RetentionPolicy, site=site)
class RetentionPolicyAdmin(ReadOnlyAdmin):
    """Every version of the retention; the newest holds."""

    list_display = (
        *("version", _moment("created_at", "Since")),
        *(_in_words(setting) for setting in policies.RETENTION),
    )
    ordering = ("-version",)


@admin.register(Provisioner, site=site)
class ProvisionerAdmin(ReadOnlyAdmin):
    """Credentials of identity services, without the credential."""

    list_display = (
        *("name", "provisioner_id", _moment("created_at", "Created")),
        *(_moment("rotated_at", "Rotated"), _moment("revoked_at", "Revoked")),
    )
    search_fields = ("name",)
    ordering = ("name",)


@admin.register(SweepRun, site=site)
class SweepRunAdmin(ReadOnlyAdmin):
    """When each sweep last ran, and how it went."""

    list_display = (
        *("name", _moment("started_at", "Started"), _moment("succeeded_at", "Last success")),
        *("rows_so_far", "last_error"),
    )
    ordering = ("name",)

    @admin.display(description="Rows, all runs together", ordering="rows")
    def rows_so_far(self, run: SweepRun) -> str:
        """The table adds them up."""
        return f"{run.rows:,}"


@admin.register(User, site=site)
class AdminAccountAdmin(InOwnWords, UserAdmin):
    """The console's accounts, for those who may do everything.

    Nobody is deleted: the audit log names them. An account that is not active cannot sign in.
    Every change has its audit entry, in the same transaction; Django's own log of changes
    would be a second truth, so it is not written.
    """

    actions = None
    show_full_result_count = False
    change_form_template = "adminui/change_form.html"
    form = AdminAccountForm
    add_form = NewAdminForm
    add_fieldsets = ((None, {"fields": ("username", "password1", "password2")}),)
    fieldsets = (
        (None, {"fields": ("username", "password", "email")}),
        ("Rights", {"fields": ("is_active", "is_superuser")}),
        ("Dates", {"fields": ("signed_in", "made")}),
    )
    readonly_fields = ("signed_in", "made")
    list_display = ("username", "email", "is_active", "is_superuser", "signed_in")
    list_filter = ("is_active", "is_superuser")
    search_fields = ("username", "email")
    signed_in = staticmethod(_moment("last_login", "Last sign-in"))
    made = staticmethod(_moment("date_joined", "Made"))

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any
    ) -> Any:
        """Made anew for each request, so it may know whose it is."""
        form = super().get_form(request, obj, change=change, **options)
        form.acting_pk = request.user.pk  # type: ignore[attr-defined]
        return form

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_owner(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return _is_owner(request)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return _is_owner(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return _is_owner(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm, change: bool) -> None:
        """Save, and remember for the audit entry what the account could do before.

        An account of the console is one that may enter it.
        """
        obj.is_staff = True
        if change:
            obj.rights_before = _rights(User.objects.select_for_update().get(pk=obj.pk))
        super().save_model(request, obj, form, change)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:  # type: ignore[override]
        _tell(request, "admin.create", obj, None)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:  # type: ignore[override]
        before = getattr(obj, "rights_before", None)
        _tell(request, "admin.change" if before else "admin.reset_password", obj, before)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        """In a transaction, which Django's page has none of: the audit entry goes with it."""
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)


def _is_owner(request: HttpRequest) -> bool:
    user = request.user
    return user.is_authenticated and user.is_active and user.is_superuser


def _tell(request: HttpRequest, action: str, account: User, before: dict[str, Any] | None) -> None:
    audit_write(
        actor=f"admin:{request.user.get_username()}"[:150],
        action=action,
        target=account.username,
        before=before,
        after=_rights(account),
    )


def _rights(account: User) -> dict[str, Any]:
    return {
        "username": account.username,
        "is_active": account.is_active,
        "is_staff": account.is_staff,
        "is_superuser": account.is_superuser,
    }


def _cell(values: dict[str, Any], name: str) -> str:
    """A JSON value for people; nothing for a name that is not there."""
    value = values.get(name, "")
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _hex(value: bytes | memoryview) -> SafeString:
    return format_html('<code class="hash">{}</code>', bytes(value).hex())
