"""The demo's task in a plain loop of transformers and peft, step by step beside ART's; see README.md."""
