"""One vLLM deployment as one health, version, update and recovery domain."""
