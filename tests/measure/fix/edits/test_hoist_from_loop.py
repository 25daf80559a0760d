"""What does not depend on the turn is computed before the loop."""

from tests.measure.fix.proposing import proposed


def test_what_code_elsewhere_may_change_stays():
    before = """
        import torch
        from annealing import anneal

        for step in range(100):
            noise = torch.full((8,), schedule.value)
            print(noise)
            {}
    """
    for call in ("schedule.advance()", "anneal(schedule)", "anneal(step, of=schedule)"):
        assert not proposed(before.format(call), "noise =", "HST114", "hoist-from-loop")
    assert proposed(before.format("other.advance()"), "noise =", "HST114", "hoist-from-loop")


def test_what_a_function_of_the_file_changes_for_all_stays():
    before = """
        import torch

        def advance():
            {}

        for step in range(100):
            noise = torch.full((8,), schedule.value)
            print(noise)
            advance()
    """
    for line in ("schedule.value *= 0.5", "schedule.advance()", "anneal(schedule)"):
        assert not proposed(before.format(line), "noise =", "HST114", "hoist-from-loop")
    assert proposed(before.format("print(3)"), "noise =", "HST114", "hoist-from-loop")


def test_what_a_function_inside_changes_stays():
    before = """
        import torch

        def train(n):
            def grow():
                nonlocal {}
                n = 2

            for step in range(4):
                mask = torch.ones(n, n).tril()
                print(mask)
                grow()
    """
    assert not proposed(before.format("n"), "mask =", "LCH014", "hoist-from-loop")
    assert proposed(before.replace("nonlocal {}", "pass"), "mask =", "LCH014", "hoist-from-loop")


def test_a_name_with_other_values_keeps_them():
    before = """
        import torch

        def train(n):
            mask = None
            for step in range(4):
                if step == 2:
                    mask = torch.ones(n, n).tril()
                print(mask)
    """
    for skipped in (before, before.replace("mask = None", "pass").replace("print(mask)", "del mask")):
        (after,) = proposed(skipped, "mask = torch", "LCH014", "hoist-from-loop")
        assert "        mask = tril\n" in after
    (after,) = proposed(before.replace("mask = None", "pass"), "mask = torch", "LCH014", "hoist-from-loop")
    assert "mask = tril" not in after


def test_what_each_turn_keeps_for_itself_stays():
    before = """
        import torch

        for step in range(4):
            frames.append(torch.zeros(84, 84))
    """
    assert not proposed(before, "append", "LCH105", "hoist-from-loop")
    assert proposed(before.replace("append(", "append(x + "), "append", "LCH105", "hoist-from-loop")
