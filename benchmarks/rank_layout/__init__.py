"""How long and how much memory rank groups take, beside megatron-core's generator; see README.md."""
