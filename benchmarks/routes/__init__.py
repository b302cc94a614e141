"""The routes of a mixture-of-experts model from received records into a batch; see README.md."""
