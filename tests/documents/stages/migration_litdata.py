# in process
# after
assert sorted(number for batch in loader for number in batch["number"].tolist()) == list(range(1000))
