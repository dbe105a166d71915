"""The results of worker processes, in their slots, until batches are delivered."""

from __future__ import annotations

from headrace.data.loader.executors.base import BuiltBatch
from headrace.data.loader.executors.dispatch import BatchTask
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import SlotPool


class BatchResults:
    """The answers for batches of an iteration that are not delivered yet."""

    def __init__(self, slots: SlotPool, rank: int) -> None:
        self._slots = slots
        self._rank = rank
        self._answers: dict[int, AnswerMessage] = {}

    def add(self, answer: AnswerMessage) -> None:
        """Keep an answer for its delivery."""
        self._answers[answer.number] = answer

    def take(self, task: BatchTask, *, lends: bool) -> BuiltBatch:
        """Return a finished task's batch, as views of its slot or as copies; raises user errors."""
        answer = self._answers.pop(task.number)
        if answer.answer is Answer.EXHAUSTED:
            self._slots.give(answer.slot)
            return BuiltBatch(batch=task.batch, exhausted=True)
        structure = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
        if answer.answer is Answer.FAILED:
            self._slots.give(answer.slot)
            where = f"rank {self._rank}, worker {answer.worker}"
            raise BatchFailure.from_bytes(structure).in_caller(where)
        read = self._slots.lend if lends else self._slots.copy_out
        content, bad, samples = read(answer.slot, structure)
        return BuiltBatch(batch=task.batch, content=content, bad=tuple(bad), samples=samples)
