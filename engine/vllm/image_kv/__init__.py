"""The KV of images, kept by content, for use again wherever the image stands.

    rotation.py     cached keys, turned to other positions
    keys.py         what names an entry: model, tenant, image, size
    entry.py        the K/V and encoder output of one image, in one piece of memory
    files.py        the file tier; its format is `format.py`
    order.py        which image goes first when room is needed
    pool.py         entries in memory and in files, held while they are used
    stats.py        what the pool counts
    transfer.py     rows between entries and vLLM's paged cache
    jumps.py        where a prefill ends a chunk and where it goes on
    layers.py       what each layer computes of an image, by a profile of the model
    narrowing.py    layers that drop rows; `extension.py` gives it the model
    taint.py        hashes of their own for approximate blocks
    settings.py     `engine.vllm.image_kv`
    families.py     what it cannot be used with, refused at the start
    prompt_images.py, tracked.py  the images of a request, and what is known of it
    messages.py     what the scheduler's side and the worker's side tell each other
    planner.py      the scheduler's side
    worker.py       the worker's side; `loaded_model.py` makes it of vLLM's layers
    connector.py, encoder.py      vLLM's connectors for KV and for encoder outputs
    reporting.py    tells the gateway

docs/adr/0015-image-kv.md has the design. What it needs of vLLM stands in `engine/vllm/core_0_32.py` and `rope_0_32.py`;
the scheduler that calls it is `engine/vllm/scheduler.py`.
"""
