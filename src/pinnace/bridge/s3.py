"""Objects in S3: scripts and inputs from there, results to there.

The client library comes with ``pip install pinnace[s3]``; without it everything else works.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

from pinnace.errors import PinnaceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import minio

LIMIT = 30.0  # seconds for an answer
SIGNED = dt.timedelta(days=7)  # no longer is allowed
REFUSALS = {"NoSuchBucket", "NoSuchKey", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


class S3Error(PinnaceError):
    """S3 refused, in its own words."""


class S3PassingError(S3Error):
    """S3 does not answer: to be tried again."""


class S3:
    """One endpoint as one user of it."""

    def __init__(self, place: dict[str, Any], credentials: dict[str, str]) -> None:
        try:
            import minio  # noqa: PLC0415 - optional
            import urllib3  # noqa: PLC0415
        except ImportError as error:
            raise UsageError("S3 needs a library that is not installed", hint="pip install 'pinnace[s3]'") from error
        endpoint = place["endpoint"].removeprefix("https://").removeprefix("http://").rstrip("/")
        secure = place.get("secure", True) and not place["endpoint"].startswith("http://")
        missing = {"accesskey", "secretkey"} - credentials.keys()
        if missing:
            raise S3Error(f"the Secret {place['secret']} has no {' and no '.join(sorted(missing))}")
        self._bucket = place["bucket"]
        self._errors = (minio.error.MinioException, urllib3.exceptions.HTTPError, OSError, ValueError)
        self._client: minio.Minio = minio.Minio(
            endpoint,
            access_key=credentials["accesskey"],
            secret_key=credentials["secretkey"],
            secure=secure,
            region=place.get("region") or "us-east-1",
            http_client=urllib3.PoolManager(timeout=LIMIT, retries=urllib3.Retry(2, backoff_factor=0.2)),
        )

    def read(self, key: str) -> bytes:
        try:
            response = self._client.get_object(self._bucket, key)
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()
        except self._errors as error:
            raise self._said(error, key) from error

    def download(self, key: str, path: Path) -> None:
        try:
            self._client.fget_object(self._bucket, key, str(path))
        except self._errors as error:
            raise self._said(error, key) from error

    def upload(self, path: Path, key: str) -> None:
        """The bucket is made if there is none, as Bridge Operator did."""
        try:
            self._make_bucket()
            self._client.fput_object(self._bucket, key, str(path))
        except self._errors as error:
            raise self._said(error, key) from error

    def address_to_get(self, key: str) -> str:
        """Of an object that is there, for somebody who has no credentials."""
        try:
            self._client.stat_object(self._bucket, key)
            return self._client.get_presigned_url("GET", self._bucket, key, expires=SIGNED)
        except self._errors as error:
            raise self._said(error, key) from error

    def address_to_put(self, key: str) -> str:
        try:
            self._make_bucket()
            return self._client.get_presigned_url("PUT", self._bucket, key, expires=SIGNED)
        except self._errors as error:
            raise self._said(error, key) from error

    def written(self, key: str) -> float:
        """When an object was written, by the clock of S3."""
        try:
            found = self._client.stat_object(self._bucket, key).last_modified
            return found.timestamp() if found else 0.0
        except self._errors as error:
            raise self._said(error, key) from error

    def _make_bucket(self) -> None:
        if not self._client.bucket_exists(self._bucket):
            self._client.make_bucket(self._bucket)

    def _said(self, error: Exception, key: str) -> S3Error:
        code, words = said_by(error)
        message = f"S3 {self._bucket}/{key}: {code or type(error).__name__}: {words}"
        return S3Error(message) if code in REFUSALS or isinstance(error, ValueError) else S3PassingError(message)


def said_by(error: Exception) -> tuple[str, str]:
    """S3's code and words. The library does not read them if the answer's type is not the one that it expects."""
    text = str(error)
    code, words = (re.search(f"<{name}>(.*?)</{name}>", text) for name in ("Code", "Message"))
    if code:
        return code[1], words[1] if words else "no more is said"
    return str(getattr(error, "code", "")), str(getattr(error, "message", "") or text)
