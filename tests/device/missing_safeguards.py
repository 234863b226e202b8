"""What keeps copies right, taken out piece by piece: engines and a mover with which bytes must be found wrong."""

from fkat_data.device import AcceleratorMover


class WithoutEvent:
    """Of an engine: the caller's stream does not wait for the copy."""

    def hand_over(self, events, tensors):
        for tensor in tensors:
            tensor.record_stream(self._module.current_stream(self.device))


class WithoutRecord:
    """Of an engine: the allocator does not learn of the caller's stream."""

    def hand_over(self, events, tensors):
        super().hand_over(events, [])


class WithoutKeeping(AcceleratorMover):
    """Lets go of what the copies read at once."""

    def begin(self, microbatch):
        moving = super().begin(microbatch)
        self._sources.clear()
        return moving


def movers(engine, *arguments):
    """Functions that make a mover without a safeguard, by the name of what is missing; ``engine`` is a class."""
    without_event = type("LateWithoutEvent", (WithoutEvent, engine), {})
    without_record = type("LateWithoutRecord", (WithoutRecord, engine), {})
    return {
        "event": lambda: AcceleratorMover(without_event(*arguments)),
        "record_stream": lambda: AcceleratorMover(without_record(*arguments)),
        "sources": lambda: WithoutKeeping(engine(*arguments)),
    }
