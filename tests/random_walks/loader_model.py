"""What a loader's position has to be after any sequence of calls: plain Python, without a loader.

Of a run that nothing disturbs, the model knows the lengths: so many microbatches in each epoch.
"""

import copy
from typing import NamedTuple


class Place(NamedTuple):
    """A position, and whether a load has put the loader there, with nothing delivered since.

    Attributes:
        ended: The epoch whose last microbatch was delivered last; None: another one has begun, or none was.
    """

    epoch: int = 0
    step: int = 0
    is_loaded: bool = False
    ended: int | None = None


class LoaderModel:
    """The position of a loader, and the epoch of its iterator.

    Args:
        length: Returns the number of microbatches in an epoch, which is not zero.
    """

    def __init__(self, length):
        self.length = length
        self.place = Place()
        self.iterating = None  # the epoch of the live iterator; None: there is none
        self._is_begun = True  # whether a loop has begun at the loaded place
        self._said_epoch = 0
        self._undo = None  # the place before the last call, if that was a delivery

    @property
    def position(self):
        """Epoch and step: after an epoch's last microbatch, the start of the next one."""
        return self.place[:2]

    @property
    def positions(self):
        """All that a loader may say which does not know yet that an epoch is over."""
        epoch, step = self.position
        return {self.position, (epoch - 1, self.length(epoch - 1))} if epoch and not step else {self.position}

    def fresh(self):
        """Return the model of a new loader."""
        return type(self)(self.length)

    def save(self):
        """Return what ``load`` takes."""
        return self.place

    def __deepcopy__(self, memo):
        other = self.fresh()
        vars(other).update(vars(self))
        return other

    def agree(self, position):
        """Take over which of ``positions`` the loader says: it decides on which epoch a copy begins."""
        self._said_epoch = position[0]

    def next_epoch(self):
        """Return the epoch that an iteration would be of."""
        place = self.place
        return place.epoch + (place.step > 0 and not place.is_loaded)

    def begin(self):
        """``iter(loader)``."""
        if self.next_epoch() != self.place.epoch:
            self.place = Place(self.next_epoch())
        self.place = self.place._replace(ended=None)
        self.iterating = self.place.epoch
        self._is_begun = True
        self._undo = None

    def take(self):
        """``next(iterator)``: return where in the table its microbatch stands; None: the epoch is over."""
        if self.place.epoch != self.iterating:
            self.iterating = self._undo = None
            return None
        self._undo = self.place
        found, step = self.position, self.place.step + 1
        is_last = step == self.length(self.place.epoch)
        epoch = self.place.epoch
        self.place = Place(epoch + 1, ended=epoch) if is_last else Place(epoch, step)
        return found

    def fail(self):
        """``next(iterator)``, which raises an error of the dataset: nothing has changed."""

    def take_back(self):
        """``loader.take_back()``: return whether something was."""
        if self._undo is None:
            return False
        self.place, self._undo = self._undo, None
        return True

    def end_epoch(self):
        """``loader.end_epoch()``."""
        if self.place.step:
            self.place = Place(self.place.epoch + 1)
            self.stop()

    def load(self, place):
        """``loader.load_state_dict(state)``, of a state that was saved there."""
        self.place = place._replace(is_loaded=True)
        self._is_begun = False
        self.stop()

    def go_to(self, epoch):
        """``loader.set_epoch(epoch)``."""
        if epoch != self.next_epoch():
            self.place = Place(epoch)
            self.stop()

    def stop(self):
        """``loader.close()``: the position stays."""
        self.iterating = self._undo = None

    def copy(self):
        """``copy.deepcopy(loader)``: the epoch under way from its start, or what was loaded and not begun."""
        other = self.fresh()
        other.place = Place(self._said_epoch) if self._is_begun else self.place
        other._is_begun = self._is_begun
        return other


class StreamModel(LoaderModel):
    """The position of a loader with the reference's states: at an epoch's very end, the loop after a load is empty."""

    def take(self):
        place = self.place
        if place.epoch == self.iterating and place.step == self.length(place.epoch):
            self.place = Place(place.epoch + 1, ended=place.epoch)
        return super().take()

    def load(self, place):
        if place.ended is not None:
            place = Place(place.ended, self.length(place.ended))
        super().load(place)


class MixtureModel:
    """The position of a mixture of loaders, and of each loader in it.

    Args:
        sources: The models of the loaders, by name.
        strategy: Says the source of each draw.
        on_exhausted: What becomes of a source that runs out.
    """

    def __init__(self, sources, strategy, on_exhausted):
        self.sources = {name: Source(model) for name, model in sources.items()}
        self.strategy, self.on_exhausted = strategy, on_exhausted
        self.changes = []  # epoch and draw from which on another strategy counts, and that one
        self.epoch = self.draw = 0
        self.is_loaded = self.is_over = False
        self.left, self.exhausted = set(sources), set()
        self.iterating = None
        self._undo = None  # what was before the last call, if that was a delivery

    @property
    def step(self):
        return sum(source.delivered for source in self.sources.values())

    @property
    def position(self):
        return self.epoch, self.step

    @property
    def positions(self):
        """Where nothing is left of an epoch, a mixture may be in the next one."""
        is_at_end = self.step > 0 and copy.deepcopy(self)._next() is None
        return {self.position, (self.epoch + 1, 0)} if is_at_end else {self.position}

    def agree(self, position):
        """Go to the next epoch if the mixture is there, and has nothing left of the one before."""
        if position == (self.epoch + 1, 0):
            self._next()
            self._end()

    def next_epoch(self):
        return self.epoch + (self.step > 0 and not self.is_loaded)

    def fresh(self):
        sources = {name: source.model.fresh() for name, source in self.sources.items()}
        return MixtureModel(sources, self.strategy, self.on_exhausted)

    def save(self):
        return copy.deepcopy(vars(self))

    def load(self, saved):
        vars(self).update(copy.deepcopy(saved))
        for source in self.sources.values():
            source.model.load(source.model.save())
            source.is_under_way, source.is_loaded = False, True
        self.is_loaded, self.iterating = True, None
        self._undo = None

    def copy(self):
        """``copy.deepcopy(loader)``: it goes on at this place."""
        other = self.fresh()
        other.load(self.save())
        return other

    def begin(self):
        self._undo = None
        if self.step and not self.is_loaded:
            self._leave()
        for source in self.sources.values():
            if not source.is_under_way and not (self.is_loaded and source.has_ended and source.taken):
                source.begin(is_further=self.is_loaded)
        self.iterating = self.epoch

    def take(self):
        self._undo, undo = None, {**vars(self), "sources": copy.deepcopy(self.sources)}
        undo |= {"left": {*self.left}, "exhausted": {*self.exhausted}, "_undo": None}
        if self.epoch != self.iterating:
            self.iterating = None
            return None
        found = self._next()
        if found is None:
            self._end()
            self.iterating = None
        else:
            self.is_loaded, self._undo = False, undo
        return found

    def set_weights(self, strategy):
        """``loader.set_weights(weights)``: what is taken back later, comes again by the strategy that it came by."""
        self.changes[:] = [each for each in self.changes if each[0] < (self.epoch, self.draw)]
        self.changes.append(((self.epoch, self.draw), strategy))

    def fail(self):
        self._undo = None

    def take_back(self):
        if self._undo is None:
            return False
        vars(self).update(self._undo)
        return True

    def end_epoch(self):
        if self.step:
            self._leave()
            self.iterating = self._undo = None

    def stop(self):
        self.iterating = self._undo = None
        for source in self.sources.values():
            source.model.stop()
            source.is_under_way = False

    def _leave(self):
        for source in self.sources.values():
            source.model.end_epoch()
            source.is_under_way = False
            source.has_ended, source.taken = False, 0
        self._end()

    def _end(self):
        self.epoch, self.draw, self.is_loaded, self.is_over = self.epoch + 1, 0, False, False
        self.left, self.exhausted = set(self.sources), set()
        for source in self.sources.values():
            source.delivered = 0

    def _next(self):
        while not self.is_over:
            begun = [strategy for at, strategy in self.changes if at <= (self.epoch, self.draw)]
            name = [self.strategy, *begun][-1].source(self.epoch, self.draw, frozenset(self.left))
            if name not in self.left:
                self.draw += 1
                continue
            source = self.sources[name]
            at = source.take()
            if at is not None:
                self.draw += 1
                return name, at
            if (source.taken and not source.delivered) or self._runs_out(
                name, is_empty=not source.taken
            ):  # it had ended before this epoch
                source.begin()
        return None

    def _runs_out(self, name, *, is_empty):
        """Return whether a source that has run out begins again."""
        self.exhausted.add(name)
        if self.on_exhausted == "drop" or is_empty:
            self.left.discard(name)
        if self.on_exhausted == "stop":
            self.is_over = True
        elif self.on_exhausted == "restart":
            self.is_over = len(self.exhausted) == len(self.sources)
        self.is_over = self.is_over or not self.left
        return self.on_exhausted == "restart" and not self.is_over and not is_empty


class Source:
    """A loader in a mixture: the model of it, and its pass under way."""

    def __init__(self, model):
        self.model = model
        self.delivered = 0  # in the mixture's epoch
        self.taken = 0  # of the pass
        self.is_under_way = self.has_ended = self.is_loaded = False

    def begin(self, *, is_further=False):
        """Begin a pass, or go on with a loaded one."""
        self.model.begin()
        self.is_under_way, self.has_ended = True, False
        self.taken = self.taken if is_further else 0

    def take(self):
        at = self.model.take() if self.is_under_way else None
        if at is None and self.is_under_way and self.is_loaded and not self.taken:
            self.begin()  # the loaded place was the end of a pass
            at = self.model.take()
        self.is_loaded = self.is_loaded and at is None
        if at is None:
            self.is_under_way, self.has_ended = False, True
        else:
            self.delivered, self.taken = self.delivered + 1, self.taken + 1
            # A loader that is in its next epoch has ended this pass.
            self.has_ended = self.model.place.epoch != self.model.iterating
        return at
