"""How fast and how dense batches are packed, beside NeMo-RL's, TRL's and AReaL's ways; see README.md."""
