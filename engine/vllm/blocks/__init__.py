"""Blocks of KV by what they hold: which are text, an image's, or mixed, and which of them go first.

    labels.py    what the tokens of a block are
    returns.py   how soon conversations come back, learned from those that do
    groups.py    free blocks by groups, in place of vLLM's free queue
    pool.py      vLLM's pool of blocks, with labels, and with groups
    install.py   puts a pool in the place of vLLM's while a scheduler is made

docs/adr/0017-modality-blocks.md says why, and what it measured.
"""
