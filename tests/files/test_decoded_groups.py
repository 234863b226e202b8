import os
import pickle

from fkat_data.files.kept import DecodedGroups


def test_the_most_recently_used_groups_stay_within_the_limit_and_one_in_any_case():
    kept, decoded = DecodedGroups(100), []

    def group(key, size_bytes=40):
        def decode():
            decoded.append(key)
            return key, size_bytes

        return kept.group(key, decode)

    for key in "abacba":
        assert group(key) == key
    assert "".join(decoded) == "abcb" + "a"
    assert group("large", 1000) == "large"
    assert group("large", 1000) == "large"
    assert decoded.count("large") == 1
    kept.drop("large")
    kept.drop("never")
    group("large", 1000)
    assert decoded.count("large") == 2


def test_a_forked_process_is_not_held_up_by_its_parent(processes):
    kept = DecodedGroups(100)
    kept.group("a", lambda: ("a", 1))
    with kept._lock:
        pid = os.fork()
        if not pid:
            os._exit(0 if kept.group("a", lambda: ("again", 1)) == "again" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pickle.loads(pickle.dumps(kept)).group("a", lambda: ("b", 1)) == "b"
