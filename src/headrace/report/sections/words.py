"""The words of the page."""

from __future__ import annotations

from headrace.report.markup import element, joined
from headrace.report.material import Material
from headrace.report.section import Section, section

_WORDS = {
    "batch": "the samples that one step trains on together",
    "core": "a part of the CPU that runs one thing at a time",
    "data loader": "what reads samples, prepares them and hands them over in batches",
    "data wait": "time in which a rank has no batch to work on; its accelerator idles meanwhile",
    "rank": "one of the processes that train the model together, each usually with its own GPU",
    "step": "one round of training, from one update of the weights to the next",
    "transform": "something done to a sample: decoding, cropping, normalizing",
    "worker": "a process that prepares batches for a rank while that computes",
}


def words(_material: Material) -> Section:
    """Return the section that explains the words of the page."""
    told = joined(
        joined((element("dt", word), element("dd", meaning))) for word, meaning in _WORDS.items()
    )
    return section("words", "Words on this page", element("dl", told, class_="words"))
