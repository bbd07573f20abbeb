"""Attacks on the promise of privacy, one file for each attack that has a name.

A file names the source of the attack, carries it out, and shows both that it succeeds
on code without the guard and that it fails on guarded code. So a guard that no longer
guards fails a test here, and so does an attack that no longer attacks anything.
"""
