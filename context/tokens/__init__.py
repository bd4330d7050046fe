"""How many prompt tokens a message takes: text by a vocabulary, images by the model's own rule, both corrected by what
the engine reports.

    vocabulary   counts a text: the shipped vocabulary through tiktoken, or a model folder's own tokenizer
    texts        remembers counts, samples long texts, keeps to a budget
    visual       tokens of an image, by model family
    families     which family a model is of: by its folder, or by its name
    calibration  estimates against reported prompts
    estimator    all of it, for one model
"""
