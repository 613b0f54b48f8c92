"""Pages for people: where everything is, and what each error code means."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.kernel.problems import catalogue
from relay.api.read_only import read_only


@read_only
def index(request: HttpRequest) -> HttpResponse:
    """What a person finds who follows the address that `manage.py up` prints."""
    return render(request, "relay/index.html")


@read_only
def errors(request: HttpRequest) -> HttpResponse:
    """The page that every problem's `type` points into."""
    return render(request, "relay/errors.html", {"problems": catalogue()})
