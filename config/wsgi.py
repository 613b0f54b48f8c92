"""The WSGI application that granian serves."""

import os
from contextlib import suppress

from django.core.wsgi import get_wsgi_application
from django.db import DatabaseError, InterfaceError, connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
_django = get_wsgi_application()

from config.gate.application import Gate  # noqa: E402 - after the settings

application = Gate(_django)

# A first connection before the first request: wrong settings stop the process at its start.
with suppress(DatabaseError, InterfaceError):
    connection.ensure_connection()
    connection.close()
