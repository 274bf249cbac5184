"""A body of many lines as it arrives: cut into lines, and these into blocks, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

BLOCK_LINES = 128
"""Lines that are stored in one step; more would make others wait, fewer would commit more often."""
_BLOCK_BYTES = 2 * 2**20
UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank: its number from 0, and its bytes; None if it is too long."""

    position: int
    content: bytes | None


async def read_blocks(
    chunks: AsyncIterator[bytes], *, max_line_bytes: int
) -> AsyncIterator[list[Line]]:
    """Yield the lines of a body in blocks, each as soon as it is full; blank ones are left out.

    Holds no more than a block, a chunk and a line, however long body and lines are.
    """
    block: list[Line] = []
    size = 0
    async for line in _read_lines(chunks, max_line_bytes):
        block.append(line)
        size += len(line.content or b"")
        if len(block) == BLOCK_LINES or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


async def _read_lines(chunks: AsyncIterator[bytes], max_line_bytes: int) -> AsyncIterator[Line]:
    number = 0
    begun = bytearray()
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            if line := _line(number, begun, part, max_line_bytes):
                yield line
            number += 1
            begun.clear()
        begun += rest[: max_line_bytes + 1 - len(begun)]  # a byte too much is enough to know
    if line := _line(number, begun, b"", max_line_bytes):
        yield line


def _line(number: int, begun: bytearray, rest: bytes, max_line_bytes: int) -> Line | None:
    if len(begun) + len(rest) > max_line_bytes:
        return Line(number, None)
    content = bytes(begun) + rest
    if number == 0:
        content = content.removeprefix(UTF8_BOM)
    return Line(number, content) if content.strip() else None
