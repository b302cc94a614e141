"""An array in hand becomes one that two processes have, beside torch and Ray; see README.md."""
