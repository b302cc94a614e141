"""Kernels for training language models. This version: chunked log-probabilities of selected tokens."""

from art_kernels.logprobs import DEFAULT_CHUNK_BYTES, SelectedLogprobs, selected_logprobs

__all__ = ["DEFAULT_CHUNK_BYTES", "SelectedLogprobs", "selected_logprobs"]
