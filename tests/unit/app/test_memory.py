"""What large bodies took is given back."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def held_after_large_blocks(before: str) -> int:
    """MiB that a process still has of sixty, once they are free and smaller blocks between them are not."""
    program = f"""
        import os
        {before}
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        bytearray(8 << 20)
        start = resident()
        pairs = [(b"a" * (3 << 20), b"b" * 100_000) for _ in range(20)]
        small = [pair[1] for pair in pairs]
        del pairs
        print(resident() - start)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_go_back_to_the_system() -> None:
    assert held_after_large_blocks("from app.memory import give_large_blocks_back; give_large_blocks_back()") < 10
    # Else there would be nothing to do.
    assert held_after_large_blocks("pass") > 40
