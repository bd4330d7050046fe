"""Training of the demo model: `python -m engine.demo_model.training`."""
