"""The console's addresses, below `/admin/`."""

from django.urls import path

from adminui.site import site

urlpatterns = [path("", site.urls)]
