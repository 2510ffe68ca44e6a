"""What changes: storages, their versions, and the views that share them.

Turns every mutation into new nodes at the moment it is recorded. May import tape/ and engine/. Invariants: a storage's
head is the current value of its base; a tensor whose alias has seen the storage's epoch has a current node; a version
counter never decreases.
"""
