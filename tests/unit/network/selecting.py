"""A kernel that watches no more descriptors for its user (``fs.epoll.max_user_watches``, or no memory)."""

from __future__ import annotations

import errno
import os
import selectors
from typing import Any


class LimitedSelector(selectors.EpollSelector):
    """Refuses what is registered while ``full`` is set, as the kernel would."""

    full = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if LimitedSelector.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().register(fileobj, events, data)
