"""Raise at any instruction of ``fkat_data.DataLoader``, and go on: beside a loader of the same arguments that nothing interrupts."""

import functools
import json

import torch
from drop_in_examples import Counting, Drawing, Lazy, Remembering
from interruption_sweep import ERRORS, Interruptions, Preempted, go_through, left, sweep
from torch.utils.data import RandomSampler
from walks import recorded

from fkat_data import DataLoader
from fkat_data.testing import digest

COUNT = 11


def drawn():
    sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(5))
    return DataLoader(Drawing(COUNT), 2, sampler=sampler, seed=7)


def with_known_length(num_workers):
    loader = DataLoader(Counting(COUNT), 2, num_workers=num_workers, seed=7)
    len(loader)  # from then on, torch compares the number of microbatches with it
    return loader


#: What makes a loader, by name. With a number of workers above 0, a process of its own is swept.
WAYS = {
    "shuffled": lambda: DataLoader(Drawing(COUNT), 2, shuffle=True, seed=7),
    "a sampler with a generator": drawn,
    "a sampler that draws": lambda: DataLoader(Drawing(COUNT), 2, sampler=Lazy(COUNT), seed=7),
    "iterable": lambda: with_known_length(0),
    "iterable with a state": lambda: DataLoader(Remembering(COUNT), 2, seed=7, snapshot_every_n_steps=2),
    "shuffled, two workers": lambda: DataLoader(Drawing(COUNT), 2, shuffle=True, seed=7, num_workers=2),
    "iterable, three workers": lambda: with_known_length(3),
    "iterable with a state, two workers": lambda: DataLoader(
        Remembering(COUNT), 2, seed=7, num_workers=2, persistent_workers=True
    ),
}


class Reference:
    """The microbatches of each epoch, and the state before each, of a loader that nothing interrupts."""

    def __init__(self, make):
        self._make = make
        self.loader = make()
        self.microbatches, self.states = [], []

    def epoch(self, number):
        while len(self.microbatches) <= number:
            microbatches, states = recorded(self.loader, digest, len(self.microbatches) + 1)
            self.microbatches.append(microbatches)
            self.states.append(states)
        return self.microbatches[number], self.states[number]

    def leads_on(self, state, number, position):
        """Return whether a state leads to the same data as the one of a position."""
        expected, states = self.epoch(number)
        if state == states[position]:
            return True
        with self._make() as loader:
            loader.load_state_dict(state)
            rest = expected[position:] or self.epoch(number + 1)[0]
            found = [digest(microbatch) for microbatch in loader]
            return found == rest


def check_epoch(reference, loader, interruptions, epoch, resumes_at):
    def check(position):
        assert reference.leads_on(loader.state_dict(), epoch, position), interruptions.last_site

    expected, _ = reference.epoch(epoch)
    go_through(
        loader, interruptions, expected, resumes_at, check, lambda call, iterator, _: digest(call(next, iterator))
    )
    assert (loader.epoch, loader.step) == (epoch + 1, 0)


def sweep_beside(make, share, error=Preempted):
    """Go through epochs as ``sweep`` does, beside a loader that nothing interrupts; return how often was raised."""
    interruptions, reference = Interruptions(error, share), Reference(make)
    check = functools.partial(check_epoch, reference)
    with reference.loader:
        sweep(make, interruptions, check, first_stop=1, num_stops=3)
    return interruptions.num_raised


def main(way, error, share):
    """Sweep in this process; print how often was raised, and which processes are left."""
    print(json.dumps({"raised": sweep_beside(WAYS[way], int(share), ERRORS[error]), "left": left()}))
