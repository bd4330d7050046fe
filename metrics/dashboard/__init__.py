"""The dashboard's figures: pure functions over the records' queries, each answer a JSON value.

    window.py         which time is asked for, and how long its bins are
    overview.py       now and over time, by turn, causes, evictions
    conversations.py  the list, and one conversation's turns
    images.py         the list, and one image's conversations
    pool_and_tiers.py the pool of images' KV and the tiers for blocks
    policies.py       the policies in force, and what each cost
    whatif.py         recorded turns under other policies, in simulation

`app/dashboard/` serves them. None is a figure that nothing is known of; it is never 0.
"""
