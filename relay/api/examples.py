"""One story for all examples of the schema: an envelope of 19 bytes, from submit to ack."""

from typing import Any

DEVICE_ID = "6f1c2a54-0f0c-4d2e-9b5d-3d1f0e5a7c11"
MESSAGE_ID = "c0ffee00-5b1d-4c2a-8a8e-2f6b7d9e1a01"
OTHER_MESSAGE_ID = "0b5e55ed-7a1c-4f3b-9c2d-8e4f5a6b7c02"
CIPHERTEXT = "Y2lwaGVydGV4dCwgcmVhbGx5Lg=="
ACCEPTED_AT = "2026-12-01T09:30:00.123456Z"
EXPIRES_AT = "2026-12-02T09:30:00.123456Z"
TIMES: dict[str, Any] = {
    "accepted_at": ACCEPTED_AT,
    "expires_at": EXPIRES_AT,
    "ttl_seconds": 86400,
}

SUBMISSION: dict[str, Any] = {
    "recipient_device_id": DEVICE_ID,
    "message_id": MESSAGE_ID,
    "protocol_version": 1,
    "ciphertext": CIPHERTEXT,
    "ttl_seconds": 86400,
}
ACCEPTED: dict[str, Any] = {"message_id": MESSAGE_ID, **TIMES}
BATCH: dict[str, Any] = {"envelopes": [SUBMISSION, {**SUBMISSION, "message_id": OTHER_MESSAGE_ID}]}
_NAMES = {"message_id": MESSAGE_ID, "recipient_device_id": DEVICE_ID}
_OTHER_NAMES = {**_NAMES, "message_id": OTHER_MESSAGE_ID}
_FULL = {"code": "RECIPIENT_QUOTA_EXCEEDED", "retryable": True, "retry_after": 40}
_REJECTED = {**_OTHER_NAMES, "status": "rejected", "error": _FULL}
BATCH_RESULTS: dict[str, Any] = {"results": [{**_NAMES, "status": "accepted", **TIMES}, _REJECTED]}
BATCH_REJECTED: dict[str, Any] = {"results": [_REJECTED]}
PAGE: dict[str, Any] = {
    "envelopes": [
        {
            "message_id": MESSAGE_ID,
            "protocol_version": 1,
            "ciphertext": CIPHERTEXT,
            "size": 19,
            "accepted_at": ACCEPTED_AT,
            "expires_at": EXPIRES_AT,
        }
    ],
    "next_cursor": "AQDyLO68hu8DdcQ5FjpWBMsAJOOrZ9YcsrbfK_s0NQgRPhNX2rt_AGTlPxmWRjXbWMUDthoOTayX",
    "has_more": False,
}
ACKNOWLEDGEMENT: dict[str, Any] = {"message_ids": [MESSAGE_ID, OTHER_MESSAGE_ID]}
ACKNOWLEDGED: dict[str, Any] = {
    "results": [
        {"message_id": MESSAGE_ID, "status": "acknowledged"},
        {"message_id": OTHER_MESSAGE_ID, "status": "unknown"},
    ]
}
DEVICE_PUT: dict[str, Any] = {
    "token_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
}
DEVICE_ACTIVE: dict[str, Any] = {"device_id": DEVICE_ID, "state": "active"}
DEVICE_DISABLED: dict[str, Any] = {"device_id": DEVICE_ID, "state": "disabled"}
DEVICE_VIEW: dict[str, Any] = {
    "device_id": DEVICE_ID,
    "pending": {"count": 3, "bytes": 3072},
    "limits": {"envelope_bytes": 65536, "pending_count": 1000, "pending_bytes": 67108864},
    "wake": None,
}
WAKE_WEBPUSH: dict[str, Any] = {
    "transport": "webpush",
    "endpoint": "https://push.example.net/wpush/v2/gAAAAABl5c2V",
    "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcx"
    "aOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    "auth": "BTBZMqHH6r4Tts7J_aSIgg",
}
WAKE_GATEWAY: dict[str, Any] = {"transport": "gateway", "handle": "a-name-that-the-gateway-knows"}
WAKE_REGISTERED: dict[str, Any] = {"transport": "webpush"}
