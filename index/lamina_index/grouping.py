"""A page of groups, or of documents that are no near-duplicates of each other.

The listing is made in the order of the ranking, and each step depends on the better rows only:

1. A row of a group that is listed already is passed over.
2. With `collapse`, a row whose cosine with the best hit of a listed group is the threshold or more
   is folded under the first such group: it is not listed.
3. Any other row puts its group on the list.

Without `group_by` each row is a group of its own. A group's further hits are its best rows after
that, without those that were folded; with `collapse` also without those near a better hit of the
group, which are folded under that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.group_codes import ALONE, GroupCodes
from lamina_index.hits import Entry, in_order
from lamina_index.looks import Looks
from lamina_index.matching import Matching
from lamina_index.near_duplicates import NearDuplicates
from lamina_index.search_options import SearchOptions
from lamina_index.store_reading import StoreReading
from lamina_index.view import View

LOOKS = (56, 56, 120, 248, 504, 1016, 2040)
"""Rows of each look; the last width is that of all further ones. With the spare candidates of
`View.nearest` they are powers of two, and the first ones those of every page that ends there. Each
look doubles what was seen, so that all together cost no more than twice the last one. A search with
`collapse` takes no more looks than these, so that many near-duplicates cost no more."""

_ROWS_PER_MEMBER = 8
"""Best rows of a group that are looked at for each of its hits, where near-duplicates are left
out."""


@dataclass(slots=True)
class _Listed:
    """A hit of the listing, and the rows that are folded under it, best first."""

    code: int
    key: int
    score: float
    folded: list[int] = field(default_factory=list)


class GroupListing:
    """Makes the listing as far as a page needs it."""

    def __init__(
        self,
        reading: StoreReading,
        view: View,
        looks: Looks,
        codes: GroupCodes,
        matching: Matching | None,
        options: SearchOptions,
    ) -> None:
        """Begin with an empty listing.

        Args:
            reading: The transaction of the view.
            view: Its rows are listed.
            looks: Gives them, best first.
            codes: Their groups.
            matching: The rows that pass the filter; None for all.
            options: What is wanted.
        """
        self._reading = reading
        self._view = view
        self._looks = looks
        self._codes = codes
        self._unseen = matching
        self._matching = matching
        self._options = options
        self._least = -np.inf if options.min_score is None else options.min_score
        self._listed: list[_Listed] = []
        self._codes_listed: set[int] = set()
        self._folded: set[int] = set()
        self._near: NearDuplicates | None = None
        if options.collapse is not None:
            self._near = NearDuplicates(options.collapse, view.delta.shape[1])

    def page(self) -> list[Entry]:
        """Give the hits of the page, those of a group beside each other."""
        options = self._options
        self._list(options.offset + options.top_k)
        page = self._listed[options.offset : options.offset + options.top_k]
        page.sort(key=lambda each: -each.score)  # a look may give what the one before it missed
        hits = self._with_members(page) if options.group_size > 1 else [[each] for each in page]
        return [
            Entry(each.key, each.score, rank, each.code != ALONE, tuple(each.folded))
            for rank, group in enumerate(hits, options.offset + 1)
            for each in group
        ]

    def _list(self, wanted: int) -> None:
        """Take looks until there are enough groups, or no row is left."""
        looked = 0
        while len(self._listed) < wanted:
            width = LOOKS[min(looked, len(LOOKS) - 1)]
            look = self._looks.next(width, self._unseen)
            looked += 1
            keys = in_order(self._reading, look.scores, look.keys)
            self._take(look.scores.tolist(), keys, wanted)
            done = look.last or (len(look.scores) > 0 and look.scores[-1] < self._least)
            if done or (self._near is not None and looked == len(LOOKS)):
                return
            self._pass_over(keys)

    def _take(self, scores: list[float], keys: NDArray[np.int64], wanted: int) -> None:
        """List, fold or pass over the rows of a look; after `wanted` groups only fold."""
        vectors = self._vectors(keys) if self._near is not None and len(keys) else None
        for place, (score, key, code) in enumerate(
            zip(scores, keys.tolist(), self._codes_of(keys), strict=True)
        ):
            if code in self._codes_listed:
                continue
            if score < self._least:
                return
            if self._near is not None and vectors is not None:
                if (first := self._near.first_near(vectors[place])) is not None:
                    self._listed[first].folded.append(key)
                    self._folded.add(key)
                    continue
                if len(self._listed) < wanted:
                    self._near.keep(vectors[place])
            elif len(self._listed) == wanted:
                return
            if code != ALONE:
                self._codes_listed.add(code)
            if len(self._listed) < wanted:
                self._listed.append(_Listed(code, key, score))

    def _pass_over(self, keys: NDArray[np.int64]) -> None:
        """Leave the rows of a look and of the listed groups out of the looks to come."""
        rows = self._unseen or self._view.every
        held, delta = rows.held.copy(), rows.delta.copy()
        newer, places = self._view.places(keys)
        held[places[~newer]] = False
        delta[places[newer]] = False
        if self._codes_listed:
            listed = self._lookup(self._codes_listed)
            held &= ~listed[self._codes.held]
            delta &= ~listed[self._codes.delta]
        self._unseen = Matching.rows(held, delta)

    def _with_members(self, page: Sequence[_Listed]) -> list[list[_Listed]]:
        """Add each group's further hits."""
        rows = self._matching or self._view.every
        codes = {each.code for each in page} - {ALONE}
        wanted = self._lookup(codes)
        held = np.flatnonzero(wanted[self._codes.held] & rows.held)
        delta = np.flatnonzero(wanted[self._codes.delta] & rows.delta)
        keys = self._view.delta_keys[delta]
        if self._view.snapshot is not None:
            keys = np.concatenate([self._view.snapshot.keys[held], keys])
        of = np.concatenate([self._codes.held[held], self._codes.delta[delta]])
        by_code = np.argsort(of, kind="stable")
        starts = np.flatnonzero(np.diff(of[by_code], prepend=-2))
        groups = {
            int(of[part[0]]): keys[part] for part in np.split(by_code, starts[1:]) if len(part)
        }
        # at most all that are folded are left out
        found = self._looks.members(groups, self._members_looked_at + len(self._folded))
        return [
            [best] if best.code == ALONE else self._members(best, *found[best.code])
            for best in page
        ]

    def _members(
        self, best: _Listed, scores: NDArray[np.floating], keys: NDArray[np.int64]
    ) -> list[_Listed]:
        """The hits of one group, from its best rows."""
        keys = in_order(self._reading, scores, keys)
        near: NearDuplicates | None = None
        if self._options.collapse is not None:
            near = NearDuplicates(self._options.collapse, self._view.delta.shape[1])
            vectors = self._vectors(np.append(keys, best.key))
            near.keep(vectors[-1])
        members = [best]
        left = self._members_looked_at
        for place, (score, key) in enumerate(zip(scores.tolist(), keys.tolist(), strict=True)):
            if key in self._folded:
                continue
            left -= 1
            if len(members) == self._options.group_size or left < 0 or score < self._least:
                break
            if key == best.key:
                continue
            if near is not None:
                if (first := near.first_near(vectors[place])) is not None:
                    members[first].folded.append(key)
                    continue
                near.keep(vectors[place])
            members.append(_Listed(best.code, key, score))
        return members

    @property
    def _members_looked_at(self) -> int:
        size = self._options.group_size
        return size if self._near is None else size * _ROWS_PER_MEMBER

    def _vectors(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings (n, D) of keys in any order."""
        distinct, places = np.unique(keys, return_inverse=True)
        found, rows = self._reading.vectors(distinct.tolist())
        ordered: NDArray[np.float32] = rows[np.argsort(found)[places]]
        return ordered

    def _codes_of(self, keys: NDArray[np.int64]) -> list[int]:
        newer, places = self._view.places(keys)
        codes = np.full(len(keys), ALONE, np.int32)
        codes[newer] = self._codes.delta[places[newer]]
        codes[~newer] = self._codes.held[places[~newer]]
        return codes.tolist()

    def _lookup(self, codes: set[int]) -> NDArray[np.bool_]:
        """A table that tells of each code whether it is among some; never of `ALONE`."""
        table = np.zeros(self._codes.count + 1, np.bool_)  # the last is for `ALONE`
        table[list(codes)] = True
        return table
