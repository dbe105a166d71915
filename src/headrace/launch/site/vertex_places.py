"""What scripts under Vertex AI's contract are told of places, project and region."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.contracts.vertex_variables import VertexPlaces
from headrace.core import env


def vertex_places(output: str, data: Mapping[str, str]) -> VertexPlaces:
    """Return the places of a script, with the project and the region that gcloud's variables name.

    Args:
        output: The folder, or URL, below which it leaves what it makes.
        data: Where channels are, by their names.
    """
    return VertexPlaces(
        output=output,
        data=data,
        project=env.GOOGLE_CLOUD_PROJECT.get() or env.CLOUDSDK_CORE_PROJECT.get() or "",
        region=env.GOOGLE_CLOUD_REGION.get() or env.CLOUDSDK_COMPUTE_REGION.get() or "",
    )
