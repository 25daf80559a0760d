"""Lists are not searched from the beginning."""

from tests.measure.fix.proposing import change, proposed


def test_a_comprehension_looks_in_a_set():
    before, after = change("""
        class Oracle:
            def __init__(self, x, rng):
                self.x = x
                self.labeled = rng.choice(len(x), 10).tolist()

            def unlabeled(self):
      -         return [i for i in range(len(self.x)) if i not in self.labeled]
      +         labeled_set = set(self.labeled)
      +         return [i for i in range(len(self.x)) if i not in labeled_set]
    """)
    assert proposed(before, "not in self.labeled", "HST118", "list-lookups")[0] == after


def test_a_list_that_grows_has_a_set_beside_it():
    before, after = change("""
        def sample(adj, seeds, rng):
            n_id = list(seeds)
      +     n_id_set = set(n_id)
            for v in seeds:
                for u in rng.sample(adj[v], 5):
      -             if u not in n_id:
      +             if u not in n_id_set:
                        n_id.append(u)
      +                 n_id_set.add(u)
            return n_id
    """)
    assert proposed(before, "not in n_id", "HST118", "list-lookups")[0] == after


def test_places_are_in_a_dictionary():
    before, after = change("""
        def edges_of(seeds, edges):
            n_id = list(seeds)
      -     src = [n_id.index(u) for u, _ in edges]
      +     n_id_places = {item: place for place, item in reversed(list(enumerate(n_id)))}
      +     src = [n_id_places[u] for u, _ in edges]
            return src
    """)
    assert proposed(before, "n_id.index", "HST118", "list-lookups")[0] == after


def test_all_searches_of_a_list_use_one_dictionary():
    before, after = change("""
        def edges_of(seeds, edges):
            n_id = list(seeds)
      -     src = [n_id.index(u) for u, _ in edges]
      -     dst = [n_id.index(v) for _, v in edges]
      +     n_id_places = {item: place for place, item in reversed(list(enumerate(n_id)))}
      +     src = [n_id_places[u] for u, _ in edges]
      +     dst = [n_id_places[v] for _, v in edges]
            n_id.append(0)
            last = [n_id.index(v) for _, v in edges]
            return src, dst, last
    """)
    assert proposed(before, "src = ", "HST118", "list-lookups")[0] == after


def test_a_window_is_a_deque():
    before, after = change("""
      + from collections import deque
        class Window:
            def __init__(self, size):
      -         self.size, self.rows = size, []
      +         self.size, self.rows = size, deque()

            def add(self, row):
                self.rows.append(row)
                if len(self.rows) > self.size:
      -             self.rows.pop(0)
      +             self.rows.popleft()
    """)
    assert proposed(before, "pop(0)", "HST020", "list-lookups")[0] == after


def test_slices_need_a_list():
    before = """
        rows = []
        for row in stream:
            rows.append(row)
            if len(rows) > 10:
                rows.pop(0)
            use(rows[-3:])
    """
    assert not proposed(before, "pop(0)", "HST020", "list-lookups")


def test_other_containers_stay():
    before = """
        known = load()
        for x in xs:
            if x in known:
                use(x)
    """
    assert not proposed(before, "in known", "HST118", "list-lookups")


def test_a_function_searches_a_list_of_the_file():
    before, after = change("""
        def read_words(path):
            return sorted(set(open(path).read().split()))


        words = read_words("words.txt")
      + words_places = {item: place for place, item in reversed(list(enumerate(words)))}


        def encode(word):
      -     return words.index(word)
      +     return words_places[word]
    """)
    assert proposed(before, "index(word)", "HST114", "list-lookups")[0] == after


def test_a_method_tests_a_constant():
    before, after = change("""
        STOP = ["the", "a", "of"]
      + STOP_set = set(STOP)


        class Cleaner:
            def is_stop(self, word):
      -         return word in STOP
      +         return word in STOP_set
    """)
    assert proposed(before, "in STOP", "HST020", "list-lookups")[0] == after


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


def test_the_place_in_a_try_stays():
    before = """
        def places(rows):
            names = list(rows)
            for x in rows:
                try:
                    use(names.index(x))
                except ValueError:
                    pass
    """
    assert not proposed(before, "names.index", "HST118", "list-lookups")


def test_what_is_appended_is_evaluated_once():
    before = """
        seen = []
        for x in xs:
            if x not in seen:
                seen.append(random.randrange(100))
    """
    assert not proposed(before, "not in seen", "HST118", "list-lookups")


def test_a_list_that_is_stacked_stays():
    before = """
        window = []
        for row in rows:
            window.append(row)
            if len(window) > 10:
                window.pop(0)
            use(torch.stack(window))
    """
    assert not proposed(before, "pop(0)", "HST020", "list-lookups")
