"""Objects in S3: scripts, inputs and results.

The client library comes with ``pip install pinnace[s3]``; without it everything else works. Only servers that the
bridge's administrator has named are called, redirects are not followed, and every transfer has a total time limit.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from pinnace.deadline import DeadlineSocket
from pinnace.errors import S3Error, S3TransientError, UsageError
from pinnace.validation import printable

if TYPE_CHECKING:
    import minio
    import urllib3

    from pinnace.slurm.endpoint import Endpoint

STALL_TIMEOUT = 30.0  # seconds without a byte
OBJECT_TIMEOUT = 600.0  # seconds for the transfer of an object
CHUNK_SIZE = 1 << 20
URL_LIFETIME = dt.timedelta(days=7)  # of presigned URLs; the longest that S3 allows
PERMANENT_ERRORS = {"NoSuchBucket", "NoSuchKey", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


class S3:
    """A client of one endpoint with one user's credentials, for the transfer of one object."""

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
            http_client=connection_pool(time.monotonic() + OBJECT_TIMEOUT),
        )

    def read(self, key: str, max_size: int) -> bytes:
        """The content of a small object."""
        try:
            response = self._client.get_object(self._bucket, key)
            try:
                data = bytes(response.read(max_size + 1))
            finally:
                response.close()
        except self._errors as error:
            raise self._error(error, key) from error
        if len(data) > max_size:
            raise S3Error(f"S3 {self._shown(key)} is larger than {max_size >> 10} KiB")
        return data

    def download(self, key: str, file: BinaryIO) -> None:
        try:
            response = self._client.get_object(self._bucket, key)
            try:
                while data := response.read(CHUNK_SIZE):
                    file.write(data)
            finally:
                response.close()
        except self._errors as error:
            raise self._error(error, key) from error

    def upload(self, file: BinaryIO, size: int, key: str) -> None:
        """Upload a file. The bucket is created if it does not exist, as Bridge Operator did."""
        try:
            self._make_bucket()
            self._client.put_object(self._bucket, key, file, size)
        except self._errors as error:
            raise self._error(error, key) from error

    def presigned_get_url(self, key: str) -> str:
        """A URL to download an existing object without credentials."""
        try:
            self._client.stat_object(self._bucket, key)
            return self._client.get_presigned_url("GET", self._bucket, key, expires=URL_LIFETIME)
        except self._errors as error:
            raise self._error(error, key) from error

    def presigned_put_url(self, key: str) -> str:
        try:
            self._make_bucket()
            return self._client.get_presigned_url("PUT", self._bucket, key, expires=URL_LIFETIME)
        except self._errors as error:
            raise self._error(error, key) from error

    def last_modified(self, key: str) -> float:
        """When an object was written, by the clock of S3; 0 if unknown."""
        try:
            found = self._client.stat_object(self._bucket, key).last_modified
            return found.timestamp() if found else 0.0
        except self._errors as error:
            raise self._error(error, key) from error

    def _make_bucket(self) -> None:
        if not self._client.bucket_exists(self._bucket):
            self._client.make_bucket(self._bucket)

    def _shown(self, key: str) -> str:
        return printable(f"{self._bucket}/{key}", 300)

    def _error(self, error: Exception, key: str) -> S3Error:
        code, message = error_details(error)
        message = f"S3 {self._shown(key)}: {code or type(error).__name__}: {message}"
        return (
            S3Error(message) if code in PERMANENT_ERRORS or isinstance(error, ValueError) else S3TransientError(message)
        )


def error_details(error: Exception) -> tuple[str, str]:
    """S3's error code and message. The library does not parse them if the content type is not the expected one.

    Nothing else of the response is shown: the library's own error contains the whole body.
    """
    text = str(error)[:65536]
    code, message = (re.search(f"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    if code:
        return printable(code[1], 60), printable(message[1], 300) if message else "no more is said"
    known = printable(str(getattr(error, "code", "") or ""), 60)
    return known, printable(str(getattr(error, "message", "") or ""), 300) or "it does not answer as S3 does"


def connection_pool(deadline: float) -> urllib3.PoolManager:
    """A pool of connections with one deadline, without redirects."""
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
    manager = urllib3.PoolManager(timeout=STALL_TIMEOUT, retries=retries)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager
