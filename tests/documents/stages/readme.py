shown = []


def print(*values):  # noqa: A001 - what the README prints is looked at below
    shown.append(values[-1].tolist())


# after
other = DataLoader(torch.arange(1000), batch_size=10, shuffle=True, num_workers=0)
other.load_state_dict(torch.load("state.pt"))
assert next(iter(other)).tolist() == shown[5]
numbers = {number for batch in shown for number in batch}
assert len(shown) == 6
assert len(numbers) == 60
