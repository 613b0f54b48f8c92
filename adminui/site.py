"""The console's own site: Django's admin with our name on it, and nothing registered twice."""

from django.contrib.admin import AdminSite

from adminui.forms import SignInForm


class ConsoleSite(AdminSite):
    """What `/admin/` serves."""

    site_header = "Relay"
    site_title = "Relay console"
    index_title = "Overview"
    site_url = None  # the relay has no other pages for people
    index_template = "adminui/index.html"
    login_form = SignInForm


site = ConsoleSite(name="admin")
