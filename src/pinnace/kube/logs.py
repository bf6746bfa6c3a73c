"""The log of a container, of which every line is given once, however often the connection breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinnace.kube.client import Api


class ContainerLog:
    """The output of a container, which may go on. Not for several threads at once."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&follow=true"
        self._given = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines that were not given before, until the container ends. A failure of the API is raised."""
        for number, text in enumerate(self._api.stream(self._path)):
            if number >= self._given:
                self._given += 1
                yield text
