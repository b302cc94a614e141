"""The commands of ``art-topology``, one module each.

They need the extra ``cli``; importing them loads nothing that a command needs to do its work.
"""
