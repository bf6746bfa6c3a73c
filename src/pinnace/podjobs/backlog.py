"""Limits how many actions of a plan one pass does; the others are the first in the next pass.

A plan is made anew in every pass, and pods of a tenant can cause actions in each of them that come to nothing. So the
backlog remembers the actions that were left, by what they are about and in their order, and puts them before new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace.podjobs.actions import AskAccounting, Cancel, Forget, FreeIndex, Retire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.podjobs.actions import Action

    Subject = tuple[str, object]

MAX_ACTIONS = 100  # actions in one pass


@dataclass(kw_only=True)
class Backlog:
    """``waiting`` are the subjects of the actions for which the last pass had no room."""

    waiting: list[Subject] = field(default_factory=list)

    def take(self, actions: Sequence[Action]) -> list[Action]:
        """What is to be done now of all that can be."""
        places = {what: place for place, what in enumerate(self.waiting)}
        ordered = sorted(actions, key=lambda action: places.get(subject(action), len(places)))
        self.waiting = [subject(action) for action in ordered[MAX_ACTIONS:]]
        return ordered[:MAX_ACTIONS]


def subject(action: Action) -> Subject:
    """What an action does, and to what: the same in the next plan, whatever else has changed there."""
    what: object
    match action:
        case AskAccounting():
            what = None  # there is one for all jobs
        case Cancel(jobs=jobs):
            what = jobs[0]
        case Retire(node=node) | Forget(node=node) | FreeIndex(node=node):
            what = node
        case _:
            what = action.pod["metadata"]["uid"]
    return type(action).__name__, what
