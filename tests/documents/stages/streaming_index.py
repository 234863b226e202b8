from stage import write_numbers

write_numbers("more", 200)
# after
assert sorted(batch) == ["noisy", "number"]
