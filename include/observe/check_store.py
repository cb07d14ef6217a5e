"""Check of the object store that HEADRACE_WAREHOUSE names."""

from __future__ import annotations

from include.ground.object_store import StoreUnavailable, find_store
from include.ground.password_file import PasswordUnreadable
from include.ground.settings import Settings
from include.observe.check_result import CheckResult, failed, passed
from include.read.stored_publication import StoreUnsafe, require_conditional_puts


def check_store(settings: Settings) -> list[CheckResult]:
    """The object store answers, and exactly one of several racing conditional puts succeeds; empty without a store."""
    try:
        store = find_store(settings)
        if store is None:
            return []
        require_conditional_puts(store)
    except StoreUnavailable as error:
        return [failed("object store", error.what, "correct the HEADRACE_WAREHOUSE… settings, or start the store")]
    except (StoreUnsafe, PasswordUnreadable) as error:
        return [failed("object store", error.what, error.remedy)]
    return [passed("object store", f"{store.url}: conditional puts exclude each other")]
