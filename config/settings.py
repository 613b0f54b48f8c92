"""Every setting of the relay, from the environment (DESIGN section 5)."""

import os
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from config import environment as env
from config.kernel import failpoints, logs, outgoing

BASE_DIR = Path(__file__).resolve().parent.parent

# `up` starts a database, and `demo` needs none: it speaks HTTP only.
_WITHOUT_DATABASE = sys.argv[1:2] in (["up"], ["demo"], ["help"], ["--help"], ["--version"], [])


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgres://", "postgresql://"))


def _is_redis(url: str) -> bool:
    return url.startswith(("redis://", "rediss://", "unix://"))


# --- What others rely on by name -------------------------------------------------------------
DATABASE_URL = env.text(
    "DATABASE_URL", allowed="a postgresql:// URL", check=_is_postgres, secret=True
)
REDIS_URL = env.text(
    "REDIS_URL", allowed="a redis://, rediss:// or unix:// URL", check=_is_redis, secret=True
)
SECRET_KEY = env.text(
    "SECRET_KEY",
    allowed="at least 32 characters",
    check=lambda value: len(value) >= 32,
    secret=True,
)
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
TRUSTED_PROXY_COUNT = env.whole("TRUSTED_PROXY_COUNT", 0, minimum=0, maximum=10)
RELAY_SHARDS = env.whole("RELAY_SHARDS", 16, minimum=1, maximum=1024)
RELAY_KEYS_FILE = env.existing_file("RELAY_KEYS_FILE")
METRICS_TOKEN = env.text(
    "METRICS_TOKEN",
    allowed="at least 16 characters",
    check=lambda value: len(value) >= 16,
    secret=True,
)
LOG_LEVEL = env.choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))

# --- How this process runs -------------------------------------------------------------------
RELAY_ROLE = env.choice("RELAY_ROLE", "command", ("web", "worker", "clock", "command"))
RELAY_WEB_THREADS = env.whole("RELAY_WEB_THREADS", 4, minimum=1, maximum=256)
RELAY_WEB_WAITING = env.whole("RELAY_WEB_WAITING", 64, minimum=4, maximum=1_024)
RELAY_WEB_WORKERS = env.whole("RELAY_WEB_WORKERS", 2, minimum=1, maximum=64)
RELAY_PGBOUNCER = env.flag("RELAY_PGBOUNCER", False)
RELAY_TRIAL = env.flag("RELAY_TRIAL", False)
failpoints.arm(os.environ.get(failpoints.VARIABLE, ""), in_trial=RELAY_TRIAL)
# How long a process believes a policy or a credential that it read (PROTOCOL sections 6 and 8
# allow 5 s from the change to its effect, and a request may be under way meanwhile).
RELAY_BELIEVE_SECONDS = env.whole("RELAY_BELIEVE_SECONDS", 3, minimum=0, maximum=4)
RELAY_INSTANCE_NAME = env.text(
    "RELAY_INSTANCE_NAME",
    "Relay",
    allowed="1 to 100 characters",
    check=lambda value: len(value) <= 100,
)
RELAY_URL = env.text(
    "RELAY_URL",
    "http://127.0.0.1:8000",
    allowed="an http:// or https:// URL",
    check=lambda value: value.startswith(("http://", "https://")),
)

# --- Sweeps ----------------------------------------------------------------------------------
RELAY_SWEEP_BATCH = env.whole("RELAY_SWEEP_BATCH", 500, minimum=1, maximum=500)
RELAY_SWEEP_ROWS_PER_SECOND = env.whole(
    "RELAY_SWEEP_ROWS_PER_SECOND", 5_000, minimum=1, maximum=1_000_000
)
RELAY_SWEEP_PAUSE_MS = env.whole("RELAY_SWEEP_PAUSE_MS", 5, minimum=0, maximum=10_000)
RELAY_TICK_SECONDS = env.whole("RELAY_TICK_SECONDS", 5, minimum=1, maximum=60)

# --- Wakes (docs/operations/wakes.md) --------------------------------------------------------
WAKE_EGRESS_ALLOW = env.words(
    "WAKE_EGRESS_ALLOW",
    [],
    allowed="a comma-separated list of hosts and networks",
    check=outgoing.is_allowed_entry,
)
WAKE_GATEWAY_URL = env.text(
    "WAKE_GATEWAY_URL",
    allowed="an https:// URL, or an http:// one whose host WAKE_EGRESS_ALLOW names",
    check=lambda value: outgoing.is_gateway_url(value, outgoing.Allowed.parse(WAKE_EGRESS_ALLOW)),
)
WAKE_GATEWAY_SECRET = env.text(
    "WAKE_GATEWAY_SECRET",
    allowed="at least 32 characters",
    check=lambda value: len(value) >= 32,
    secret=True,
)
if WAKE_GATEWAY_URL:
    env.required("WAKE_GATEWAY_SECRET", WAKE_GATEWAY_SECRET, "it signs what WAKE_GATEWAY_URL gets")
if WAKE_GATEWAY_SECRET:
    env.required(
        "WAKE_GATEWAY_URL", WAKE_GATEWAY_URL, "WAKE_GATEWAY_SECRET is of no use without it"
    )
WAKE_VAPID_KEY_FILE = env.existing_file("WAKE_VAPID_KEY_FILE")
WAKE_VAPID_CONTACT = env.text(
    "WAKE_VAPID_CONTACT",
    allowed="a mailto: or https:// address",
    check=lambda value: value.startswith(("mailto:", "https://")),
)
WAKE_CA_FILE = env.existing_file("WAKE_CA_FILE")
# Calls at once in a worker, and of those to one host that devices chose.
WAKE_THREADS = env.whole("WAKE_THREADS", 32, minimum=1, maximum=256)
WAKE_PER_HOST = env.whole("WAKE_PER_HOST", 8, minimum=1, maximum=256)
# A device that was woken less than this ago is woken again a moment later.
WAKE_DEBOUNCE_MS = env.whole("WAKE_DEBOUNCE_MS", 2_000, minimum=0, maximum=60_000)

if not _WITHOUT_DATABASE:
    env.required("DATABASE_URL", DATABASE_URL, "name your PostgreSQL, or start `manage.py up`")
    env.required("SECRET_KEY", SECRET_KEY, "give at least 32 random characters")
SECRET_KEY = SECRET_KEY or "only-for-commands-that-need-no-secret"

# --- PostgreSQL ------------------------------------------------------------------------------
# Milliseconds by role: lock_timeout, statement_timeout, idle_in_transaction_session_timeout
# (DESIGN rule 4.8). 0 is no limit: a migration or a report may take its time.
_TIME_LIMITS = {
    "web": (2_000, 5_000, 10_000),
    "worker": (2_000, 25_000, 60_000),
    "clock": (2_000, 25_000, 60_000),
    "command": (5_000, 0, 0),
}


def _database(url: str) -> dict[str, object]:
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    lock, statement, idle = _TIME_LIMITS[RELAY_ROLE]
    options: dict[str, object] = {
        # Parameters travel apart from the statement, or PostgreSQL's log would quote them.
        "server_side_binding": True,
        "connect_timeout": 3,
        "tcp_user_timeout": 8_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": f"relay-{RELAY_ROLE}",
    }
    if RELAY_PGBOUNCER:  # no session state there: the limits are set on the role instead
        options["prepare_threshold"] = None
    else:
        options["prepare_threshold"] = 2
        given = parts.pop("options", "")  # an operator's own come on top of ours
        options["options"] = (
            f"-c synchronous_commit=on -c lock_timeout={lock} -c statement_timeout={statement} "
            f"-c idle_in_transaction_session_timeout={idle} "
            # PostgreSQL's own end: a session whose client vanished without a word ends too.
            "-c tcp_keepalives_idle=6 -c tcp_keepalives_interval=3 -c tcp_keepalives_count=3 "
            f"-c tcp_user_timeout=15000 {given}"
        )
    known = {name: parts.pop(name, "") for name in ("dbname", "user", "password", "host", "port")}
    return {
        "ENGINE": "config.kernel.postgresql",
        "NAME": known["dbname"],
        "USER": known["user"],
        "PASSWORD": known["password"],
        "HOST": known["host"],
        "PORT": known["port"],
        "CONN_MAX_AGE": None,
        "DISABLE_SERVER_SIDE_CURSORS": RELAY_PGBOUNCER,
        "OPTIONS": {**options, **parts},
    }


DATABASES = {"default": _database(DATABASE_URL)} if DATABASE_URL else {}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}
    if REDIS_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}

# --- The job queue (outbox/publishing.py) ------------------------------------------------------
# django-rq makes the queues from this. It is no app here: its `rqworker` would take pickle, and
# its pages change jobs without a word in the audit log (ADR 0002).
RQ_QUEUES = {
    name: {"URL": REDIS_URL, "SERIALIZER": "rq.serializers.JSONSerializer", "DEFAULT_TIMEOUT": 30}
    for name in ("wake", "maintenance")
}

# --- The house -------------------------------------------------------------------------------
INSTALLED_APPS = [
    "adminui",
    "relay",
    "quotas",
    "idempotency",
    "outbox",
    "config",
    "pgtrigger",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
# What only the console needs works on its addresses alone; /v1 pays for none of it.
MIDDLEWARE = [
    "config.middleware.RequestMiddleware",
    "config.middleware.TurnMiddleware",
    "adminui.middleware.ConsoleSecurityMiddleware",
    "adminui.middleware.ConsoleWhiteNoiseMiddleware",
    "adminui.middleware.ConsoleCSPMiddleware",
    "adminui.middleware.ConsoleSessionMiddleware",
    "adminui.middleware.ConsoleCsrfMiddleware",
    "adminui.middleware.ConsoleAuthenticationMiddleware",
    "adminui.middleware.ConsoleMessageMiddleware",
    "adminui.middleware.ConsoleFrameMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
USE_I18N = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
WHITENOISE_ALLOW_ALL_ORIGINS = False

LOGGING = logs.configuration(LOG_LEVEL)

# --- The console -----------------------------------------------------------------------------
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_COOKIE_PATH = "/admin/"
SESSION_COOKIE_AGE = 8 * 3600
SESSION_COOKIE_SECURE = not RELAY_TRIAL
CSRF_COOKIE_PATH = "/admin/"
CSRF_COOKIE_SECURE = not RELAY_TRIAL
CSRF_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
if TRUSTED_PROXY_COUNT:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "script-src": ["'self'"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
    }
}

# --- The REST face ---------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["relay.api.authentication.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "EXCEPTION_HANDLER": "relay.api.problems.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Relay",
    "DESCRIPTION": "Keeps ciphertext for devices that are offline, hands it over, and forgets it.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "relay.api.schema.refuse_unknown_members",
    ],
    "SWAGGER_UI_DIST": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}
SILENCED_SYSTEM_CHECKS = [
    "security.W004",  # HSTS is the proxy's
    "security.W008",  # so is the redirect to https
]
