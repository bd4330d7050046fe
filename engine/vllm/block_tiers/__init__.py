"""Blocks that leave the engine's prefix cache, kept in memory and in files, and read back by exact prefix.

    settings.py     `engine.vllm.block_tiers`
    checks.py       what it cannot be used with, refused at the start
    connector.py    vLLM's connector; the fingerprint of a model
    scheduling.py   what is added to the scheduler
    spec.py         what the connector makes the tiers of
    manager.py      both tiers, counted; what blocks hold
    copying.py      blocks between the CPU build's cache and memory; with a GPU vLLM has its own
    file_tier.py    blocks on their way to files and back; `files.py` has the files, `folder.py` their folder
    format.py       what is in a file
    stats.py        what is counted

docs/adr/0018-block-tiers.md has the design. What it needs of vLLM stands in `engine/vllm/tiers_0_32.py`.
"""
