"""Lines and blocks of a body come out the same however it is cut on its way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lamina_service.document_stream import BLOCK_LINES, Line, read_blocks


def read(chunks: Sequence[bytes], max_line_bytes: int = 8) -> list[list[Line]]:
    async def arrive() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[list[Line]]:
        return [block async for block in read_blocks(arrive(), max_line_bytes=max_line_bytes)]

    return asyncio.run(collect())


@given(
    content=st.text(alphabet="ab \r\n", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=8).map(sorted),
)
def test_lines_do_not_depend_on_how_the_body_is_cut(content: bytes, cuts: list[int]) -> None:
    places = [0, *cuts, len(content)]
    chunks = [content[begin:end] for begin, end in pairwise(places)]
    expected = [
        Line(number, line if len(line) <= 8 else None)
        for number, line in enumerate(content.split(b"\n"))
        if len(line) > 8 or line.strip()
    ]
    assert [line for block in read(chunks) for line in block] == expected


def test_blocks_are_full_but_for_the_last() -> None:
    blocks = read([b"x\n" * (2 * BLOCK_LINES + 3)])
    assert [len(block) for block in blocks] == [BLOCK_LINES, BLOCK_LINES, 3]
    assert blocks[1][0].position == BLOCK_LINES


def test_long_lines_make_short_blocks() -> None:
    blocks = read([b"x" * 2**20 + b"\n"] * 5, max_line_bytes=2**20)
    assert [len(block) for block in blocks] == [2, 2, 1]


def test_nothing_gives_no_block() -> None:
    assert read([]) == read([b"", b"\n\n", b" \r\n"]) == []
