"""Answer quality and cost when the KV of images is used again elsewhere: `stillframe eval`.

    base.py       what is measured: methods, donors, cells, outcomes, rows
    cases.py      questions with their prompts, and the contexts that their images' KV comes from
    held.py       the donors' KV, put in place for a prompt
    variants.py   what each method takes and computes
    answers.py    one question under all variants: how far the logits and the answer move
    timing.py     times to the first token
    on_engine.py, engine_rows.py  the same on the embedded engine
    run.py        all of it, from options to rows
    rows.py       outcomes to rows, with intervals by question
    findings.py   what the rows say of the methods
    calibrate.py  sensitivities of the layers
    parallel.py   questions side by side
    report.py     tables and JSON
    plot.py       the picture

It runs on the plain PyTorch model (`engine/reference/`), where any row can be computed, and where asked on the engine,
too. Methods and what an equal budget is: docs/adr/0016-reuse-evaluation.md. What the figures mean: docs/eval.md.
"""
