# after
assert sorted(numbers) == list(range(1000))
