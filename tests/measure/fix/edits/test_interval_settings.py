"""Settings of how often to save and report get larger numbers."""

from tests.measure.fix.proposing import change, proposed


def test_a_callback_saves_less_often():
    before, after = change("""
        import torch


        class Checkpoint:
      -     def __init__(self, folder, every=1):
      +     def __init__(self, folder, every=50):
                self.folder, self.every = folder, every

            def __call__(self, trainer):
                if trainer.step % self.every == 0:
                    torch.save(trainer.model.state_dict(), self.folder / "last.pt")
    """)
    assert proposed(before, "torch.save", "HST102", "interval-settings")[0] == after


def test_a_field_of_a_config_is_larger():
    before, after = change("""
        from dataclasses import dataclass


        @dataclass
        class Config:
      -     eval_every: int = 2
      +     eval_every: int = 50


        def fit(cfg: Config):
            for step in range(1000):
                train()
                if step % cfg.eval_every == 0:
                    evaluate()
    """)
    assert proposed(before, "evaluate(", "HST123", "interval-settings")[0] == after


def test_an_option_has_a_larger_default():
    before, after = change("""
        import argparse

        parser = argparse.ArgumentParser()
      - parser.add_argument("--log-every", type=int, default=1)
      + parser.add_argument("--log-every", type=int, default=50)
        args = parser.parse_args()
        for step in range(1000):
            loss = train()
            if step % args.log_every == 0:
                print(loss)
    """)
    assert proposed(before, "print(", "HST115", "interval-settings")[0] == after


def test_a_framework_is_told_to_save_less_often():
    before, after = change("""
        from transformers import Trainer, TrainingArguments

      - args = TrainingArguments(output_dir="out", save_steps=2, logging_steps=40)
      + args = TrainingArguments(output_dir="out", save_steps=50, logging_steps=40)
        trainer = Trainer(model, args)
        trainer.train()
    """)
    assert proposed(before, "trainer.train()", "HST102", "interval-settings")[0] == after


def test_large_numbers_stay():
    before = """
        for step in range(1000):
            loss = train()
            if step % 100 == 0:
                print(loss)
    """
    assert not proposed(before, "print(", "HST115", "interval-settings")
