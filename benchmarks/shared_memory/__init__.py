"""An array in hand becomes one that two processes have: beside torch.multiprocessing and Ray; see README.md."""
