"""The registration of the backend `smddp`, by import."""

from __future__ import annotations

from headrace.bootstrap.smddp.smdistributed.dataparallel.torch.backend import register

register()
