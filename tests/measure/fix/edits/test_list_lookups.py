"""Lists are not searched from the beginning."""

from tests.measure.fix.proposing import proposed


def test_lists_of_the_file_that_change_stay():
    before = """
        seen = []


        def is_new(word):
            return word not in seen


        def add(word):
            seen.append(word)
    """
    assert not proposed(before, "not in seen", "HST020", "list-lookups")
    assert not proposed(before.replace("seen.append(word)", "global seen; seen = [word]"), "not in", "HST020")
    local = """
        words = ["a", "b"]


        def place(words, word):
            return words.index(word)
    """
    assert not proposed(local, "index(word)", "HST020", "list-lookups")
