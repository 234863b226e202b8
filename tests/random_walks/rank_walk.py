"""Random chains of jobs: ranks deliver, save, and others load what all of them have saved; each sample comes once."""

import pickle
import random
from collections import Counter
from itertools import islice

from loader_examples import plain_state
from loader_walk import DifferenceError, Failure, expect
from rank_faces import MOST_RANKS, RANK_KINDS, rank_face_of
from walk_data import SEED, seeded, undisturbed

NUM_EPOCHS = 5


class UndecidedError(Exception):
    """A chain that the model does not follow any further."""


def merged_state(loaders):
    """Return the state of all ranks."""
    states = [pickle.loads(pickle.dumps(loader.local_state_dict())) for loader in loaders]
    return loaders[0].merge_state_dicts(states)


class Chain:
    """The ranks of a job, which other ranks follow."""

    def __init__(self, face):
        self.face = face
        self.program = [f"face = rank_face_of({face.kind!r}, {face.config!r})"]  # from rank_faces
        self.epoch = 0
        self.runs = {}
        self.had_left = False
        self.is_at_end = False  # of the epoch before, and none has begun
        self.begin_job(2)
        self.begin_epoch()

    def end(self):
        for loader in self.loaders:
            loader.close()

    def do(self, name, *arguments):
        getattr(self, name)(*arguments)

    def note(self, line):
        self.program.append(line)

    def begin_job(self, num_ranks):
        self.note(f"loaders = [face.make({num_ranks}, rank) for rank in range({num_ranks})]")
        self.note(f"iterators = [None] * {num_ranks}")
        seeded(SEED)
        self.loaders = [self.face.make(num_ranks, rank) for rank in range(num_ranks)]
        self.iterators = [None] * num_ranks
        self.has_ended = [False] * num_ranks

    def begin_epoch(self):
        self.begun_with = self.most_ranks = len(self.loaders)
        self.found = Counter()
        self.own = [[] for _ in self.loaders]  # None: the number of ranks has changed

    def undisturbed(self, num_ranks):
        """Return what each rank delivers in this epoch of a job that nothing disturbs, as items."""
        run = self.runs.setdefault(num_ranks, [])
        if not run:
            with undisturbed():
                seeded(SEED)
                for rank in range(num_ranks):
                    loader = self.face.make(num_ranks, rank)
                    run.append([self.epoch_of(loader, epoch) for epoch in range(NUM_EPOCHS)])
                    loader.close()
        return [epochs[self.epoch] for epochs in run]

    def epoch_of(self, loader, epoch):
        if self.face.before_loop is not None:
            self.face.before_loop(loader, epoch)
        return [self.face.items(microbatch) for microbatch in loader]

    def take(self, rank):
        """Take a rank's next microbatch of the epoch; return False where there is none."""
        loader = self.loaders[rank]
        if self.has_ended[rank]:
            return False
        if self.iterators[rank] is None:
            if self.face.before_loop is not None:
                self.note(f"face.before_loop(loaders[{rank}], {self.epoch})")
                self.face.before_loop(loader, self.epoch)
            self.is_at_end = False
            self.note(f"iterators[{rank}] = iter(loaders[{rank}])")
            self.iterators[rank] = iter(loader)
        self.note(f"next(iterators[{rank}], None)")
        microbatch = next(self.iterators[rank], None)
        if microbatch is None:
            self.has_ended[rank] = True
            if loader.epoch > self.epoch + 1:  # nothing was left, and this rank has nothing in the next epoch either
                raise UndecidedError
            expect(
                (loader.epoch, loader.step), (self.epoch + 1, 0), f"rank {rank} behind the end of epoch {self.epoch}"
            )
            return False
        if (loader.epoch, loader.step) > (self.epoch + 1, 0):  # nothing was left, and the next epoch has begun
            if not hasattr(loader, "take_back"):
                raise UndecidedError
            expect(loader.take_back(), True, "loader.take_back()")
            self.has_ended[rank] = True
            self.iterators[rank] = None
            return False
        items = self.face.items(microbatch)
        self.found.update(items)
        if self.own is not None:
            self.own[rank].append(items)
        return True

    def go(self, *counts):
        """Let each rank deliver: equally many, where ranks are in step."""
        counts = [counts[0]] * len(self.loaders) if self.face.is_in_step else counts[: len(self.loaders)]
        taken = [sum(self.take(rank) for _ in range(count)) for rank, count in enumerate(counts)]
        if self.face.is_in_step and len({*taken}) > 1:
            raise DifferenceError(f"ranks in step delivered {taken} microbatches")
        if all(place == (self.epoch + 1, 0) for place in self.places()):
            self.finish()
        self.settle()

    def finish(self):
        taken = []
        for rank in range(len(self.loaders)):
            count = 0
            while self.take(rank):
                count += 1
            taken.append(count)
        if self.face.is_in_step and len({*taken}) > 1:
            raise DifferenceError(f"ranks in step delivered {taken} microbatches to the epoch's end")
        self.settle()

    def settle(self):
        """Go to the next epoch if all ranks have ended this one."""
        if not all(self.has_ended):
            return
        self.check_epoch()
        self.epoch += 1
        self.has_ended = [False] * len(self.loaders)
        self.iterators = [None] * len(self.loaders)
        self.begin_epoch()
        self.is_at_end = True

    def check_epoch(self):
        begun_with = self.face.parts_of or self.begun_with
        run = self.undisturbed(begun_with) if self.face.is_compared else []
        is_known = self.face.is_compared and (self.face.has_epochs or not self.had_left)
        if self.own is not None and is_known and begun_with == len(self.loaders):
            last = -1 if self.face.refills else None
            own, expected = ([batches[:last] for batches in of_ranks] for of_ranks in (self.own, run))
            expect(own, expected, f"epoch {self.epoch}, rank by rank")
        whole = self.face.whole([item for own in run for items in own for item in items])
        missing, further = whole - self.found, self.found - whole
        most = self.face.round_size(self.most_ranks if self.face.fills_early else len(self.loaders)) - 1
        if sum(missing.values()) > most * self.face.may_drop:
            raise DifferenceError(f"epoch {self.epoch} lacks {sorted(missing)}")
        if sum(further.values()) > (most if self.face.has_fill else 0):
            raise DifferenceError(f"epoch {self.epoch} repeats {sorted(further.elements())}")

    def places(self):
        return [(loader.epoch, loader.step) for loader in self.loaders]

    def state(self):
        return merged_state(self.loaders)

    def via(self, num_ranks, further):
        """Compare what some ranks deliver with what they deliver after others that have delivered nothing."""
        num_ranks, further = 1 + num_ranks % MOST_RANKS, 1 + further % MOST_RANKS
        is_in_one_epoch = len({epoch for epoch, _ in self.places()}) == 1
        if self.face.parts_of or num_ranks == len(self.loaders) or not is_in_one_epoch or self.is_at_end:
            return
        self.note(f"# by way of {further} ranks")
        state = self.state()
        between = self.loaded(further, state)
        if self.face.may_drop and between[0].epoch > max(self.places())[0]:
            return  # what was left does not suffice for a round of the others, who leave it out
        ranks = self.loaded(num_ranks, state), self.loaded(num_ranks, merged_state(between))
        places, others = ([(loader.epoch, loader.step) for loader in loaders] for loaders in ranks)
        expect(others, places, f"where {num_ranks} ranks begin")
        of_ranks, of_others = ([self.begun(loader) for loader in loaders] for loaders in ranks)
        expect(of_others, of_ranks, f"what {num_ranks} ranks deliver")
        for loader in (*between, *ranks[0], *ranks[1]):
            loader.close()

    def loaded(self, num_ranks, state):
        """Return loaders of ranks that have loaded a state."""
        with undisturbed():
            seeded(SEED)
            loaders = [self.face.make(num_ranks, rank) for rank in range(num_ranks)]
            for loader in loaders:
                loader.load_state_dict(state)
        return loaders

    def begun(self, loader):
        """Return the first microbatches of a loader's loop."""
        with undisturbed():
            if self.face.before_loop is not None:
                self.face.before_loop(loader, loader.epoch)
            return [self.face.items(microbatch) for microbatch in islice(loader, 4)]

    def change(self, num_ranks):
        """Let other ranks go on with the state of all; as many as before, too."""
        num_ranks = 1 + num_ranks % MOST_RANKS
        before = len(self.loaders)
        if num_ranks != before and len({epoch for epoch, _ in self.places()}) > 1:
            return  # ranks that are an epoch apart keep their number
        state, places, has_ended = self.state(), self.places(), self.has_ended
        self.end()
        self.note("state = loaders[0].merge_state_dicts([loader.local_state_dict() for loader in loaders])")
        self.begin_job(num_ranks)
        self.most_ranks = max(self.most_ranks, num_ranks)
        self.note("for loader in loaders: loader.load_state_dict(state)")
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.pass_empty_rest()
        if num_ranks == before:
            self.check_loaded(state, places)
            self.has_ended = has_ended
            return
        if self.face.steps_are_strands:
            # A rank whose strands have all ended is in the next epoch.
            self.has_ended = [place == (self.epoch + 1, 0) for place in self.places()]
            if not any(self.has_ended):
                steps = (sum(step for _, step in each) for each in (places, self.places()))
                expect(*steps, "the steps of other ranks, together")
            self.own = None
            self.settle()
            return
        if len({*self.places()}) > 1:
            raise DifferenceError(f"other ranks begin at {self.places()}")
        if all(place == (self.epoch + 1, 0) for place in self.places()) and max(places) < (self.epoch + 1, 0):
            self.own = None  # what was left does not suffice for a round
            self.has_ended = [True] * num_ranks
            self.settle()
        elif any(step for _, step in places):
            expect(self.places()[0], max(places), "where other ranks begin")
            self.own = None
        elif not self.found:
            self.begin_epoch()

    def check_loaded(self, state, places):
        """Compare places and state with those that were loaded, by as many ranks as before."""
        expect(self.places(), places, "places after a load")
        if self.face.has_one_state and not self.is_at_end:  # which a stream's state says in two ways
            expect(plain_state(self.state()), plain_state(state), "the state after a load")

    def reload(self):
        """Load the present state, in the same loaders."""
        state, places = self.state(), self.places()
        self.note("state = loaders[0].merge_state_dicts([loader.local_state_dict() for loader in loaders])")
        self.note("for loader in loaders: loader.load_state_dict(state)")
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.pass_empty_rest()
        self.check_loaded(state, places)
        self.iterators = [None] * len(self.loaders)

    def pass_empty_rest(self):
        """Begin the next epoch behind the end of one, with loaders whose next loop is empty then."""
        if self.face.leaves_empty_rest and self.is_at_end:
            self.note("for loader in loaders: list(loader)  # which are empty")
            expect([list(loader) for loader in self.loaders], [[] for _ in self.loaders], "the rest of an epoch")

    def take_back(self, rank):
        """Let each rank take its last microbatch back: all of them, where ranks are in step."""
        if self.own is None or not hasattr(self.loaders[0], "take_back") or any(self.has_ended):
            return
        ranks = range(len(self.loaders)) if self.face.is_in_step else [rank % len(self.loaders)]
        self.note(f"for rank in {[*ranks]}: loaders[rank].take_back()")
        for number in ranks:
            if self.loaders[number].take_back():
                self.found.subtract(self.own[number].pop())
        self.found = +self.found

    def leave(self):
        """End the epoch on all ranks, before its end."""
        if any(self.has_ended) or not all(step for _, step in self.places()):
            return
        self.note("for loader in loaders: loader.end_epoch()")
        for loader in self.loaders:
            loader.end_epoch()
        self.epoch += 1
        expect(self.places(), [(self.epoch, 0)] * len(self.loaders), "places after end_epoch()")
        self.iterators = [None] * len(self.loaders)
        self.begin_epoch()
        self.had_left = True


ACTIONS = {
    "go": (30, lambda rng: tuple(rng.randint(0, 5) for _ in range(MOST_RANKS))),
    "finish": (8, lambda rng: ()),
    "change": (16, lambda rng: (rng.randrange(MOST_RANKS),)),
    "via": (5, lambda rng: (rng.randrange(MOST_RANKS), rng.randrange(MOST_RANKS))),
    "reload": (5, lambda rng: ()),
    "take_back": (6, lambda rng: (rng.randrange(MOST_RANKS),)),
    "leave": (4, lambda rng: ()),
}


def run(kind, config, actions, hows):
    """Go through a chain, and to the end of two epochs; return None, or the program up to a difference and the error."""
    del hows  # ranks make their microbatches in one way
    chain = Chain(rank_face_of(kind, config))
    try:
        for action in [*actions, ("finish",), ("finish",)]:
            if chain.epoch < NUM_EPOCHS - 1:
                chain.do(*action)
    except UndecidedError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a loader raises
        return chain.program, error
    finally:
        chain.end()
    return None


def chained(kind, seed, hows=(), length=12):
    """Go through a chain once; return None, or how it failed."""
    rng = random.Random(seed)
    config = RANK_KINDS[kind].drawn(rng)
    names = rng.choices([*ACTIONS], [weight for weight, _ in ACTIONS.values()], k=rng.randint(2, length))
    if names.count("change") < 2:
        names += ["go", "change", "go", "change", "go"]
    actions = [(name, *ACTIONS[name][1](rng)) for name in names]
    found = run(kind, config, actions, hows)
    return None if found is None else Failure(run, kind, seed, config, actions, hows, found)
