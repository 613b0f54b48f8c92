"""Counters of this process for `/metrics`. No label grows with users (PROTOCOL section 9)."""

from prometheus_client import Counter, Histogram

REQUESTS = Counter(
    "relay_requests", "Requests by route and result", ["method", "route", "status", "code"]
)
LATENCY = Histogram(
    "relay_request_seconds",
    "Time from the first byte handled to the answer",
    ["method", "route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
