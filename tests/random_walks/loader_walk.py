"""Random walks of one loader: a sequence of calls, each compared with the model; a failing one is made short."""

import contextlib
import copy
import os
import pickle
import random
import signal
import threading
import time

from loader_examples import plain_state
from loader_faces import KINDS, face_of
from own_workers import worker_pids
from walk_data import SEED, FailedError, fault, seeded

from fkat_data.errors import StaleIteratorError, StateMismatchError
from fkat_data.mixing import Weighted

NUM_EPOCHS = 6
_MOST_STEPS = 60
_SHORTENING_S = 20


class DifferenceError(AssertionError):
    """A loader did what the model does not."""


def expect(found, expected, what):
    if found != expected:
        raise DifferenceError(f"{what}: {found!r}, expected {expected!r}")


def with_known_starts(state):
    """Return a state in which the start of an epoch that says nothing of the dataset is as one that is not known."""
    if isinstance(state, list):
        return [with_known_starts(each) for each in state]
    if not isinstance(state, dict):
        return state
    if state.get("step") == 0 and "is_own_iterator" in state and state["dataset"] is state["iterator"] is None:
        return None
    return {key: with_known_starts(value) for key, value in state.items()}


class Walk:
    """A loader and its caller, who does what he likes.

    Args:
        face: The loader's face.
        hows: Ways to make the microbatches, one of which is tried each time that a loader is made.
    """

    def __init__(self, face, hows):
        self.face, self.hows = face, [{}, *(how for how in hows if face.takes(how))]
        self.program = [f"face = face_of({face.kind!r}, {face.config!r})", "loader = face.make()"]  # from loader_faces
        self.table, self.model = face.reference()
        seeded(SEED)
        self.loader, self.old, self.iterator = face.make(), [], None
        self.states = []
        self.may_fail = False
        self.killed_in = None
        self.passed_at = None
        self.save()

    def end(self):
        for loader in (self.loader, *(run.loader for run in self.face.runs)):
            loader.close()

    def do(self, name, *arguments):
        getattr(self, name)(*arguments)
        self.check_position()

    def note(self, line):
        self.program.append(line)

    def check_state(self):
        """Compare the state with that of a run that nothing disturbs, at the same place."""
        place = self.loader.epoch, self.loader.step
        found = self.face.runs[0].states.get(place) if self.face.has_one_state else None
        # A call that raised or was taken back may have passed shards without a microbatch, which the state of before is
        # in front of.
        if found is not None and place != self.passed_at:
            self.note("loader.state_dict()")
            expect(with_known_starts(plain_state(self.loader.state_dict())), with_known_starts(found), "the state")

    def check_position(self, loader=None, model=None, name="loader"):
        """Compare where the loader, or another one, says that it is."""
        if loader is None:
            loader, model = self.loader, self.model
        found = loader.epoch, loader.step
        expected = {model.position} if self.face.knows_end(model.position) else model.positions
        if found not in expected:
            raise DifferenceError(f"({name}.epoch, {name}.step) is {found}, expected {sorted(expected)}")
        model.agree(found)

    def is_near_the_end(self):
        return self.model.next_epoch() >= NUM_EPOCHS - 1

    def go(self, count):
        """Take so many microbatches, at most to the end of the epoch."""
        if self.iterator is None:
            self.begin()
        for _ in range(count):
            if self.iterator is None or not self.take():
                return

    def finish(self):
        self.go(_MOST_STEPS)

    def begin(self):
        """Begin an iteration, in a loop of its own or not."""
        if self.is_near_the_end():
            return
        self.retire()
        if self.face.before_loop is not None:
            self.note(f"face.before_loop(loader, {self.model.next_epoch()})")
            self.face.before_loop(self.loader, self.model.next_epoch())
        self.note("iterator = iter(loader)")
        self.iterator = iter(self.loader)
        self.model.begin()

    def begin_twice(self):
        self.begin()
        self.check_position()
        self.begin()

    def take(self):
        """Compare one microbatch; return False at the epoch's end."""
        self.note("next(iterator)")
        try:
            found = next(self.iterator)
        except StopIteration:
            self.program[-1] = "next(iterator, None)  # the end"
            expect(None, self.model.take(), "the epoch ended before")
            self.iterator = None
            return False
        except FailedError:
            if not self.may_fail:
                raise
            self.program[-1] = "# an error of the dataset"
            self.check_position()
            self.load_own()
            return False
        self.compare(found)
        self.check_position()
        return True

    def take_in_one_call(self, is_ahead):
        """Take a microbatch without an iterator, or begin to move it; either begins an epoch if none is under way."""
        if not hasattr(self.loader, "load_batch_sync") or self.is_near_the_end():
            return
        if self.model.iterating is None:
            self.retire()
            self.model.begin()
        if is_ahead:
            self.note("loader.load_batch()")
            self.loader.load_batch()
            return
        self.note("loader.load_batch_sync()")
        try:
            self.compare(self.loader.load_batch_sync())
        except StopIteration:
            self.program[-1] += "  # raises StopIteration"
            expect(None, self.model.take(), "the epoch ended before")
            self.retire()
        except FailedError:
            if not self.may_fail:
                raise
            self.load_own()

    def compare(self, found, model=None, name="loader"):
        """Compare a microbatch of the loader, or of another one."""
        model = model or self.model
        at = model.take()
        if at is None and self.face.goes_on_behind_end:
            # Resumed where nothing was left: the next epoch comes at once.
            model.begin()
            at = model.take()
        if at is None:
            raise DifferenceError(f"{name} delivers {self.face.shown(found)!r} behind the end of an epoch")
        expect(self.face.shown(found), self.table(at), f"microbatch {at} of {name}")

    def leave(self):
        """Leave the loop, as `break` does."""
        if self.iterator is not None:
            self.note("del iterator")
            self.iterator = None

    def retire(self):
        """Keep the iterator, which a newer one ends."""
        if self.iterator is not None:
            self.old.append(self.iterator)
            self.iterator = None

    def ask_old(self):
        """Ask an iterator that has ended for more."""
        if self.old and self.iterator is not self.old[-1]:
            try:
                next(self.old[-1])
            except (StaleIteratorError, StopIteration):
                return
            raise DifferenceError("an iterator that a newer one has ended goes on")

    def save(self, is_of_all=False):
        """Save the loader's own state, or that of all ranks, of which it is the only one."""
        if is_of_all:
            state = self.loader.merge_state_dicts([self.loader.local_state_dict()])
        else:
            state = self.loader.state_dict()
        made = "loader.merge_state_dicts([loader.local_state_dict()])" if is_of_all else "loader.state_dict()"
        self.note(f"state{len(self.states)} = {made}")
        self.states.append((pickle.dumps(state), self.model.save()))

    def load(self, index, where):
        index %= len(self.states)
        state, place = self.states[index]
        if where:
            self.retire()
            self.loader.close()
            how = self.hows[where % len(self.hows)]
            self.note(f"loader = face.make(**{how!r})" if how else "loader = face.make()")
            self.old = []
            self.loader = self.face.make(**how)
            self.model = self.model.fresh()
            self.may_fail = False
        self.note(f"loader.load_state_dict(state{index})")
        try:
            self.loader.load_state_dict(pickle.loads(state))
        except StateMismatchError:
            if not self.face.may_refuse(place):
                raise
            self.program[-1] += "  # is refused"
            return
        self.retire()
        self.model.load(place)

    def load_own(self):
        self.retire()
        self.note("loader.load_state_dict(loader.state_dict())")
        self.loader.load_state_dict(self.loader.state_dict())
        self.model.load(self.model.save())

    def resume_elsewhere(self, where, count):
        """Look at what another loader delivers that loads the present state; this one goes on."""
        how = self.hows[where % len(self.hows)]
        other, model = self.face.make(**how), self.model.fresh()
        self.note(f"other = face.make(**{how!r})" if how else "other = face.make()")
        self.note("other.load_state_dict(loader.state_dict())")
        other.load_state_dict(pickle.loads(pickle.dumps(self.loader.state_dict())))
        model.load(self.model.save())
        self.deliver(other, model, "other", count)
        other.close()

    def deliver(self, loader, model, name, count):
        """Compare the next microbatches of another loader, over as many epochs as it takes."""
        self.check_position(loader, model, name)
        while count > 0 and model.next_epoch() < NUM_EPOCHS - 1:
            if self.face.before_loop is not None:
                self.face.before_loop(loader, model.next_epoch())
            model.begin()
            self.note(f"for each in {name}: ...")
            for found in loader:
                self.compare(found, model, name)
                count -= 1
                if not count:
                    break
            else:
                expect(None, model.take(), f"{name}'s epoch ended before")

    def copy(self, how, is_taken):
        """Copy the loader; go on with the copy, or look at what it delivers."""
        if not self.face.copies:
            return
        self.note("other = " + ("copy.deepcopy(loader)" if how else "pickle.loads(pickle.dumps(loader))"))
        other = copy.deepcopy(self.loader) if how else pickle.loads(pickle.dumps(self.loader))
        model = self.model.copy()
        if is_taken:
            self.retire()
            self.loader.close()
            self.old = []
            self.note("loader = other")
            self.loader, self.model = other, model
        else:
            self.check_position()
            self.deliver(other, model, "other", 3)
            other.close()

    def take_back(self):
        if not hasattr(self.loader, "take_back"):
            return
        self.note("loader.take_back()")
        expect(self.loader.take_back(), self.model.take_back(), "loader.take_back()")
        self.passed_at = self.loader.epoch, self.loader.step

    def set_weights(self, *weights):
        """Draw a mixture's sources by other weights from here on."""
        strategy = getattr(self.loader, "strategy", None)
        if isinstance(strategy, Weighted):
            weights = dict(zip(strategy.names, weights, strict=False))
            self.note(f"loader.set_weights({weights})")
            self.loader.set_weights(weights)
            self.model.set_weights(strategy.with_weights(weights))

    def end_epoch(self):
        self.note("loader.end_epoch()")
        was_within = self.loader.step > 0  # also where the loader does not know yet that this was all
        self.loader.end_epoch()
        self.model.end_epoch()
        if was_within:
            self.model.stop()
            self.retire()

    def set_epoch(self, further):
        """Go to an epoch, as a trainer does before each loop, or to another one."""
        if not self.face.jumps or self.is_near_the_end():
            return
        further = 0 if self.model.place.is_loaded else further  # a loaded place is refused to any other epoch
        epoch = (self.model.next_epoch() + further) % (NUM_EPOCHS - 1)
        self.note(f"loader.set_epoch({epoch})")
        self.loader.set_epoch(epoch)
        self.model.go_to(epoch)
        if self.model.iterating is None:
            self.retire()

    def resize(self, size):
        """Go through an epoch in batches of another size."""
        if not self.face.has_samples or self.model.position[1] or self.is_near_the_end():
            return
        self.begin()  # the loop that a load comes before
        batches = self.loader.batch_sampler
        before, batches.batch_size = batches.batch_size, size
        self.note(f"loader.batch_sampler.batch_size = {size}")
        self.begin()
        self.note("list(iterator)")
        found = [number for microbatch in self.iterator for number in self.face.shown(microbatch)[0]]
        expected = []
        while (at := self.model.take()) is not None:
            expected += self.table(at)[0]
        common = min(len(found), len(expected)) if batches.drop_last else None
        expect(found[:common], expected[:common], "samples of an epoch in batches of another size")
        self.note(f"loader.batch_sampler.batch_size = {before}")
        self.iterator, batches.batch_size = None, before

    def close(self):
        self.note("loader.close()")
        self.loader.close()
        self.model.stop()
        self.retire()

    def kill(self, number):
        """Kill one of the workers, if there are any."""
        # Two workers that die over one microbatch are one fault too many, however far apart their deaths are.
        epoch = self.loader, self.loader.epoch
        pids = worker_pids() if len(self.hows) > 1 and self.killed_in != epoch else []
        if pids:
            self.killed_in = epoch
            self.note("# one of its workers is killed")
            with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
                os.kill(pids[number % len(pids)], signal.SIGKILL)

    def save_in_a_thread(self):
        thread = threading.Thread(target=self.save)
        thread.start()
        thread.join()

    def look(self):
        """Ask what a log asks."""
        self.note("repr(loader), loader.statistics()")
        repr(self.loader)
        self.loader.statistics()

    def length(self):
        if self.face.has_length and self.model.next_epoch() < NUM_EPOCHS:
            self.note("len(loader)")
            is_under_way = self.iterator is not None and self.model.iterating is not None
            epoch = self.model.iterating if is_under_way else self.model.next_epoch()
            expect(len(self.loader), self.model.length(epoch), "len(loader)")

    def fail(self, count, recovery):
        """Let the dataset fail at its next sample, then go on: by another call, by a load, or in the next loop."""
        if self.iterator is None:
            self.begin()
        if not self.face.fails or self.iterator is None or not self.is_raised_within(count):
            return
        self.check_position()
        if recovery == 0:
            self.load_own()
        elif recovery == 1:
            self.begin()
        elif recovery == 2:
            self.leave()

    def is_raised_within(self, count):
        """Take so many microbatches while the dataset fails; return whether that came up."""
        self.may_fail = True
        delivered, ended = [], None
        with fault():  # without the run that nothing disturbs
            for _ in range(count):
                try:
                    delivered.append(next(self.iterator))
                except (StopIteration, FailedError) as error:
                    ended = type(error)
                    break
        self.note("with fault():")
        for found in delivered:
            self.note("    next(iterator)")
            self.compare(found)
        if ended is StopIteration:
            self.note("    next(iterator, None)  # the end")
            expect(None, self.model.take(), "the epoch ended before")
            self.iterator = None
        elif ended is not None:
            self.note("    next(iterator)  # raises")
            self.passed_at = self.loader.epoch, self.loader.step
            self.model.fail()
        return ended is FailedError


ACTIONS = {
    "go": (30, lambda rng: (rng.randint(0, 5),)),
    "take_in_one_call": (6, lambda rng: (rng.randrange(2),)),
    "finish": (6, lambda rng: ()),
    "begin": (6, lambda rng: ()),
    "begin_twice": (3, lambda rng: ()),
    "leave": (6, lambda rng: ()),
    "ask_old": (2, lambda rng: ()),
    "save": (12, lambda rng: (rng.randrange(2),)),
    "load": (10, lambda rng: (rng.randrange(100), rng.choice([0, 0, 1, 2, 3, 4]))),
    "load_own": (3, lambda rng: ()),
    "resume_elsewhere": (6, lambda rng: (rng.randrange(4), rng.randint(1, 7))),
    "copy": (7, lambda rng: (rng.randrange(2), rng.randrange(2))),
    "take_back": (9, lambda rng: ()),
    "set_weights": (6, lambda rng: tuple(rng.choice([1, 5, 20]) for _ in range(3))),
    "end_epoch": (6, lambda rng: ()),
    "set_epoch": (3, lambda rng: (rng.choice([0, 0, 1, 2]),)),
    "resize": (3, lambda rng: (rng.randint(1, 5),)),
    "close": (3, lambda rng: ()),
    "kill": (3, lambda rng: (rng.randrange(4),)),
    "check_state": (6, lambda rng: ()),
    "save_in_a_thread": (2, lambda rng: ()),
    "look": (3, lambda rng: ()),
    "length": (3, lambda rng: ()),
    "fail": (4, lambda rng: (rng.randint(1, 3), rng.randrange(4))),
}


def drawn_actions(rng, number):
    names = rng.choices([*ACTIONS], [weight for weight, _ in ACTIONS.values()], k=number)
    return [(name, *ACTIONS[name][1](rng)) for name in names]


def run(kind, config, actions, hows):
    """Walk; return None, or the program up to the difference and the error."""
    walk = Walk(face_of(kind, config), hows)
    try:
        for action in actions:
            walk.do(*action)
    except Exception as error:  # noqa: BLE001 - whatever the loader raises
        return walk.program, error
    finally:
        walk.end()
    return None


def shortened(fails, actions):
    """Return a shorter list of actions that still fails: chunks are left out, then single ones; numbers are made small."""
    size = max(1, len(actions) // 2)
    while size:
        start = 0
        while start < len(actions):
            fewer = actions[:start] + actions[start + size :]
            if fails(fewer):
                actions = fewer
            else:
                start += size
        size //= 2
    for index, (name, *arguments) in enumerate(actions):
        for place, value in enumerate(arguments):
            for smaller in range(value):
                tried = [*actions]
                tried[index] = (name, *actions[index][1:][:place], smaller, *arguments[place + 1 :])
                if fails(tried):
                    actions = tried
                    break
    return actions


class Failure:
    """A walk that differed from the model."""

    def __init__(self, run, kind, seed, config, actions, hows, failed):
        self.run, self.kind, self.seed, self.config = run, kind, seed, config
        self.actions, self.hows = actions, hows
        self.program, self.error = failed

    def text(self):
        """Return the shortest program that differs in the same way, as far as one is found within some seconds."""
        deadline_s = time.monotonic() + _SHORTENING_S

        def fails(actions):
            if time.monotonic() > deadline_s:
                return False
            found = self.run(self.kind, self.config, actions, self.hows)
            return found is not None and type(found[1]) is type(self.error)

        actions = shortened(fails, [*self.actions])
        program, error = self.run(self.kind, self.config, actions, self.hows) or (self.program, self.error)
        lines = "\n    ".join([*program, f"# {type(error).__name__}: {error}"])
        return f"{self.kind}, seed {self.seed}:\n    {lines}"


def walked(kind, seed, hows=(), length=25):
    """Walk once; return None, or how it failed."""
    rng = random.Random(seed)
    config = KINDS[kind].fit(KINDS[kind].drawn(rng))
    actions = drawn_actions(rng, rng.randint(2, length))
    found = run(kind, config, actions, hows)
    return None if found is None else Failure(run, kind, seed, config, actions, hows, found)
