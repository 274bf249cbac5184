"""Dates of metadata as moments in time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_EPOCH = datetime(1970, 1, 1)  # naive: offsets are taken off by hand, as UTC may leave year 1
_MICROSECOND = timedelta(microseconds=1)


def instant_of(text: str) -> int | None:
    """Read an ISO 8601 date as microseconds since 1970 in UTC; None if it is none.

    A date without an offset is in UTC, one without a time is the beginning of its day, and digits
    after the microseconds are dropped.
    """
    if not _DATE.fullmatch(text):
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    since = read.replace(tzinfo=None) - _EPOCH - (read.utcoffset() or timedelta())
    return since // _MICROSECOND


def instant_text(instant: int) -> str:
    """Write an instant as a date of UTC, without its time where that is midnight.

    An instant before year 1 or after year 9999, which an offset can lead to, is given as the
    nearest that can be written.
    """
    try:
        moment = _EPOCH + instant * _MICROSECOND
    except OverflowError:
        moment = (datetime.min if instant < 0 else datetime.max).replace(microsecond=0)
    if (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
        return moment.date().isoformat()
    return moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
