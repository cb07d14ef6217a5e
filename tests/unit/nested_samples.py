"""Records of shapes that others define: CloudEvents, a push to GitHub, AWS CloudTrail, Debezium's envelope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

BEGIN = datetime(2026, 5, 1, 8, tzinfo=UTC)


def at(minute: int) -> str:
    return (BEGIN + timedelta(minutes=minute)).isoformat().replace("+00:00", "Z")


def cloud_event(n: int) -> dict[str, Any]:
    order = {"id": n, "total": n + 0.5, "customer": {"name": "A", "email": None if n % 3 else "a@example.org"}}
    return {
        "specversion": "1.0",
        "type": "org.example.order",
        "source": "/shop/1",
        "id": f"A234-{n}",
        "time": at(n),
        "datacontenttype": "application/json",
        "data": {"order": order, "lines": [{"sku": f"s{n % 5}", "quantity": n % 4 + 1}]},
    }


def push(n: int) -> dict[str, Any]:
    commit = {
        "id": f"{n + 1:040x}",
        "message": "mend\n",
        "timestamp": "2026-05-01T10:00:00+02:00",
        "author": {"name": "Ann", "email": "ann@example.org"},
        "added": ["a.txt"],
        "removed": [],
    }
    owner = {"login": "octo", "id": 5, "site_admin": False}
    return {
        "ref": "refs/heads/main",
        "before": f"{n:040x}",
        "after": f"{n + 1:040x}",
        "repository": {"id": 1, "full_name": "octo/r", "owner": owner, "pushed_at": 1_777_000_000 + n, "license": None},
        "pusher": {"name": "ann"},
        "commits": [commit] if n % 7 else [],
        "head_commit": commit | {"timestamp": (BEGIN + timedelta(minutes=n)).isoformat()},
    }


def trail(n: int) -> dict[str, Any]:
    attributes = {"creationDate": at(0), "mfaAuthenticated": "false"}
    return {
        "eventVersion": "1.08",
        "userIdentity": {
            "type": "AssumedRole",
            "arn": "arn:aws:sts::1:r",
            "sessionContext": {"attributes": attributes},
        },
        "eventTime": at(n),
        "eventName": ("GetObject", "PutObject")[n % 2],
        "requestParameters": {"bucketName": "b", "key": f"k{n}"} if n % 2 else None,
        "responseElements": None,
        "additionalEventData": {"bytesTransferredIn": 0, "x-amz-id-2": "zz"},
        "eventID": f"e-{n:04}",
        "resources": [{"type": "AWS::S3::Object", "ARN": "arn"}],
    }


def envelope(n: int) -> dict[str, Any]:
    return {
        "before": None if n % 3 == 0 else {"id": n // 3, "email": "x"},
        "after": {"id": n // 3, "email": "x@example.org", "balance": n + 0.25},
        "source": {"connector": "postgresql", "ts_ms": 1_777_600_000_000 + n, "table": "customers", "lsn": 24_023 + n},
        "op": "u" if n % 3 else "c",
        "ts_ms": 1_777_600_000_100 + n,
        "transaction": None,
    }


SHAPES = {"cloud_events": cloud_event, "pushes": push, "trail": trail, "customers": envelope}
