"""A file is opened once for all lines."""

from tests.measure.fix.proposing import proposals, proposed


def test_a_file_that_is_handed_on_stays_and_a_sync_is_said():
    before = """
        import os

        for step, batch in enumerate(loader):
            with open("log.txt", "a") as f:
                f.write("x")
                os.fsync(f.fileno())
            upload("log.txt")
    """
    assert not proposed(before, 'open("log.txt", "a")', "HST101", "kept-open-files")
    alone = before.replace('upload("log.txt")', "train(batch)")
    assert proposals(alone, 'open("log.txt", "a")', "HST101", "kept-open-files")[0].changes
