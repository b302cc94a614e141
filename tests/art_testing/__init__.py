"""What the repository's own tests share: the leftover checker, memory cgroups, tiny models."""
