"""What processes that write have to import."""

COLUMNS = {"id": "int", "text": "str"}


def samples_of(item):
    start, count = item
    for number in range(start, start + count):
        if number == 13:
            raise ValueError("thirteen")
        yield {"id": number, "text": "x" * (number % 7)}


def good_samples_of(item):
    start, count = item
    return [{"id": number, "text": "x" * (number % 7)} for number in range(start, start + count)]
