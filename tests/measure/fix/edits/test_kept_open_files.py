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


LOGGER = """
        class Logger:
            def __init__(self, path):
                self.path = path

            def log(self, step):
                with open(self.path, "a") as f:
                    f.write(f"{step}\\n")
"""


def test_what_another_file_may_read_is_said_to_be_written_later():
    assert proposals(LOGGER, "open(", "HST101", "kept-open-files")[0].changes


def test_a_file_whose_name_a_subclass_changes_is_opened_each_time():
    rolling = """
        class Rolling(Logger):
            def roll(self, path):
                self.path = path
    """
    assert not proposals(LOGGER + rolling, "open(", "HST101", "kept-open-files")
