"""What random walks need of a loader: how it is made, what an uninterrupted run of it delivers, and its model."""

from loader_examples import plain, plain_state
from loader_model import LoaderModel
from walk_data import SEED, seeded, undisturbed


class Face:
    """A loader of a kind and a configuration.

    Attributes:
        model_type: The model of a loader.
        knows_end_always: Whether a loader says at once that an epoch's last microbatch was its last.
        before_loop: What a program calls before each loop: of the loader and the epoch.
        copies: Whether a loader can be copied.
        jumps: Whether ``set_epoch`` of the loader goes to any epoch.
        has_length: Whether ``len(loader)`` is known.
        fails: Whether its dataset can fail.
        has_one_state: Whether a state within an epoch says where the caller is, and nothing of how he came there.
        has_samples: Whether an epoch has the same samples in batches of any size, which a program may set.
    """

    model_type = LoaderModel
    knows_end_always = True
    goes_on_behind_end = False
    before_loop = None
    copies = True
    jumps = False
    has_length = True
    fails = True
    has_one_state = True
    has_samples = False

    def __init__(self, kind, config):
        self.kind, self.config = kind, config
        self.runs = []

    @classmethod
    def drawn(cls, rng):
        """Return a configuration: the arguments of ``build``."""
        raise NotImplementedError

    def build(self, **config):
        """Return a loader of a configuration, and of ways to make microbatches."""
        raise NotImplementedError

    @staticmethod
    def fit(config):
        """Let an epoch have a microbatch."""
        return {**config, "count": 2 * config["size"]} if config.get("drop_last") else config

    def make(self, **how):
        """Return a new loader, whose microbatches are made in this process, in worker processes or in threads."""
        return self.build(**self.config, **how)

    def takes(self, how):
        """Return whether it gives the same where its microbatches are made in this way."""
        del how
        return True

    def shown(self, microbatch):
        return plain(microbatch)

    def may_refuse(self, place):
        """Return whether a loader need not load a state of this place of the model's: nothing changes then."""
        del place
        return False

    def knows_end(self, position):
        """Whether a loader that has delivered all of an epoch says so, where it now is at the start of the next one."""
        return self.knows_end_always

    def reference(self):
        """Return what an uninterrupted run delivers, and the model of it."""
        run = UndisturbedRun(self)
        self.runs.append(run)
        return run.microbatch, self.model_type(run.length)


class UndisturbedRun:
    """A loader that is iterated one epoch after the other, as far as somebody asks."""

    def __init__(self, face):
        self.face, self.epochs = face, []
        self.states = {}  # by epoch and step
        with undisturbed():
            seeded(SEED)
            self.loader = face.make()
        self.length(0)

    def length(self, epoch):
        """Return the number of microbatches in an epoch."""
        while len(self.epochs) <= epoch:
            with undisturbed():
                seeded(SEED)
                if self.face.before_loop is not None:
                    self.face.before_loop(self.loader, len(self.epochs))
                found = []
                for each in self.loader:
                    found.append(self.face.shown(each))
                    if self.face.has_one_state and self.loader.step:
                        place = self.loader.epoch, self.loader.step
                        self.states[place] = plain_state(self.loader.state_dict())
                self.epochs.append(found)
        return len(self.epochs[epoch])

    def microbatch(self, at):
        """Return what stands at a place: epoch and step."""
        epoch, step = at
        self.length(epoch)
        return self.epochs[epoch][step]
