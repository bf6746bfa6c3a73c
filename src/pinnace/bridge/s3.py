"""Objects in S3: scripts and inputs from there, results to there.

The client library comes with ``pip install pinnace[s3]``; without it everything else works. Only servers are called
that whoever runs the bridge has named, redirects are not followed, and every exchange has a limit as a whole.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from pinnace.deadline import DeadlineSocket
from pinnace.errors import PinnaceError, UsageError
from pinnace.validation import printable

if TYPE_CHECKING:
    import minio
    import urllib3

    from pinnace.slurm.endpoint import Endpoint

LIMIT = 30.0  # seconds without a byte
LONGEST = 600.0  # seconds for an object
CHUNK = 1 << 20
SIGNED = dt.timedelta(days=7)  # no longer is allowed
REFUSALS = {"NoSuchBucket", "NoSuchKey", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


class S3Error(PinnaceError):
    """S3 refused, in its own words."""


class S3PassingError(S3Error):
    """S3 does not answer: to be tried again."""


class S3:
    """One endpoint as one user of it, for as long as one object may take."""

    def __init__(self, endpoint: Endpoint, place: dict[str, Any], credentials: dict[str, str]) -> None:
        try:
            import minio  # noqa: PLC0415 - optional
            import urllib3  # noqa: PLC0415
        except ImportError as error:
            raise UsageError("S3 needs a library that is not installed", hint="pip install 'pinnace[s3]'") from error
        missing = {"accesskey", "secretkey"} - credentials.keys()
        if missing:
            raise S3Error(f"the Secret {place['secret']} has no {' and no '.join(sorted(missing))}")
        self._bucket = place["bucket"]
        self._errors = (minio.error.MinioException, urllib3.exceptions.HTTPError, OSError, ValueError)
        self._client: minio.Minio = minio.Minio(
            endpoint.netloc,
            access_key=credentials["accesskey"],
            secret_key=credentials["secretkey"],
            secure=endpoint.scheme == "https",
            region=place.get("region") or "us-east-1",
            http_client=pool(time.monotonic() + LONGEST),
        )

    def read(self, key: str, most: int) -> bytes:
        """A small object."""
        try:
            response = self._client.get_object(self._bucket, key)
            try:
                data = bytes(response.read(most + 1))
            finally:
                response.close()
        except self._errors as error:
            raise self._said(error, key) from error
        if len(data) > most:
            raise S3Error(f"S3 {self._shown(key)} is larger than {most >> 10} KiB")
        return data

    def download(self, key: str, file: BinaryIO) -> None:
        try:
            response = self._client.get_object(self._bucket, key)
            try:
                while data := response.read(CHUNK):
                    file.write(data)
            finally:
                response.close()
        except self._errors as error:
            raise self._said(error, key) from error

    def upload(self, file: BinaryIO, size: int, key: str) -> None:
        """The bucket is made if there is none, as Bridge Operator did."""
        try:
            self._make_bucket()
            self._client.put_object(self._bucket, key, file, size)
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

    def _shown(self, key: str) -> str:
        return printable(f"{self._bucket}/{key}", 300)

    def _said(self, error: Exception, key: str) -> S3Error:
        code, words = said_by(error)
        message = f"S3 {self._shown(key)}: {code or type(error).__name__}: {words}"
        return S3Error(message) if code in REFUSALS or isinstance(error, ValueError) else S3PassingError(message)


def said_by(error: Exception) -> tuple[str, str]:
    """S3's code and words. The library does not read them if the answer's type is not the one that it expects.

    Anything else in the answer is not shown: the library's own error has the whole body in it.
    """
    text = str(error)[:65536]
    code, words = (re.search(f"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    if code:
        return printable(code[1], 60), printable(words[1], 300) if words else "no more is said"
    known = printable(str(getattr(error, "code", "") or ""), 60)
    return known, printable(str(getattr(error, "message", "") or ""), 300) or "it does not answer as S3 does"


def pool(deadline: float) -> urllib3.PoolManager:
    """Connections that all end at a moment and go nowhere else."""
    import urllib3  # noqa: PLC0415 - optional

    class Plain(urllib3.connection.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock = DeadlineSocket(self.sock, deadline)

    class Tls(urllib3.connection.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            self.sock = DeadlineSocket(self.sock, deadline)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Tls

    retries = urllib3.Retry(2, redirect=False, backoff_factor=0.2, raise_on_redirect=True)
    manager = urllib3.PoolManager(timeout=LIMIT, retries=retries)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager
