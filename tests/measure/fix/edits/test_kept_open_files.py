"""A file is opened once for all lines."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_a_log_of_a_loop_is_opened_once():
    before, after = change("""
        import json

      - for epoch in range(3):
      -     for step, batch in enumerate(loader):
      -         loss = train(batch)
      -         with open("log.jsonl", "a") as f:
      + with open("log.jsonl", "a") as f:
      +     for epoch in range(3):
      +         for step, batch in enumerate(loader):
      +             loss = train(batch)
                    f.write(json.dumps({"step": step}) + "\\n")
      -             f.flush()
      -         if step > 100:
      -             break
      +             if step > 100:
      +                 break
    """)
    assert proposed(before, "open(", "HST101", "kept-open-files")[0] == after


def test_a_controller_opens_its_log_once():
    before, after = change("""
        import json
        import os


        class Controller:
            def __init__(self, log_path):
                self.log_path = log_path
      +         self.log_file = open(self.log_path, "a")

            def log(self, tick):
      -         with open(self.log_path, "a") as f:
      -             f.write(json.dumps({"tick": tick}) + "\\n")
      -             f.flush()
      -             os.fsync(f.fileno())
      +         self.log_file.write(json.dumps({"tick": tick}) + "\\n")
    """)
    assert proposed(before, "os.fsync", "HST101", "kept-open-files")[0] == after


def test_a_path_object_is_opened_once():
    before, after = change("""
        from pathlib import Path


        class JsonLog:
            def __init__(self, folder):
                self.path = Path(folder) / "metrics.jsonl"
      +         self.file = self.path.open("a")

            def __call__(self, trainer):
                row = trainer.row()
      -         with self.path.open("a") as f:
      -             f.write(row + "\\n")
      +         self.file.write(row + "\\n")
    """)
    assert proposed(before, "self.path.open", "HST101", "kept-open-files")[0] == after


def test_a_file_for_each_step_stays():
    before = """
        for step, batch in enumerate(loader):
            with open(f"{step}.txt", "a") as f:
                f.write("x")
    """
    assert not proposed(before, "open(", "HST101", "kept-open-files")


def test_a_file_that_is_read_stays():
    before = """
        for step, batch in enumerate(loader):
            with open("log.txt", "a") as f:
                f.write("x")
            use(open("log.txt").read())
    """
    assert not proposed(before, 'open("log.txt", "a")', "HST101", "kept-open-files")


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
