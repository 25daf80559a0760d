"""What a function gives for the same arguments is remembered."""

from tests.measure.fix.proposing import change, proposed, source


def test_a_filter_bank_of_settings_is_remembered():
    before, after = change("""
        import torch
      + import functools


      + @functools.cache
        def filter_bank(n_mels, n_fft):
            fb = torch.zeros(n_mels, n_fft)
            for i in range(n_mels):
                fb[i, i] = 1.0
            return fb


        def features(wave, n_mels, n_fft):
            fb = filter_bank(n_mels, n_fft)
            return fb @ wave


        for wave in waves:
            features(wave, 40, 512)
    """)
    assert proposed(before, "fb = torch.zeros", "LCH105", "remember-result")[0] == after


def test_what_depends_on_the_fold_is_kept_by_fold():
    before, after = change("""
        import itertools

        import torch


        def prepare_fold(x, fold, folds):
            held = torch.arange(len(x)) % folds == fold
            mean = x[~held].mean(0)
            return x - mean, held


        def main(x, args):
            trials = list(itertools.product(args.lrs, args.hidden, range(args.folds)))
      +     fold_of = {}
            for lr, hidden, fold in trials:
      -         feats, held = prepare_fold(x, fold, args.folds)
      +         if fold not in fold_of:
      +             fold_of[fold] = prepare_fold(x, fold, args.folds)
      +         feats, held = fold_of[fold]
                train(feats, held, lr, hidden)
    """)
    assert proposed(before, "= prepare_fold(", "LCH105", "remember-result")[0] == after


def test_a_model_trained_in_the_loop_does_not_matter_to_what_reads_data_alone():
    before = """
        import itertools

        import torch


        def prepare_fold(x, fold, folds):
            held = torch.arange(len(x)) % folds == fold
            return x[~held] - x[~held].mean(0)


        def main(x, model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for lr, fold in itertools.product([0.1, 0.2], range(4)):
                feats = prepare_fold(x, fold, 4)
                model(feats).sum().backward()
                optimizer.step()
    """
    after = source(before).replace("    for lr", "    fold_of = {}\n    for lr")
    made = "        if fold not in fold_of:\n            fold_of[fold] = prepare_fold(x, fold, 4)\n"
    after = after.replace("        feats = prepare_fold(x, fold, 4)", f"{made}        feats = fold_of[fold]")
    assert proposed(before, "feats = ", "LCH105", "remember-result")[0] == after
    trained = before.replace("prepare_fold(x, fold, 4)", "prepare_fold(model.weight, fold, 4)")
    assert not proposed(trained, "feats = ", "LCH105", "remember-result")


def test_inner_loops_come_again():
    before, after = change("""
        import functools

        import torch


        def causal(n):
            return torch.tril(torch.ones(n, n))


        class Model:
            def run(self, batches):
      +         causal_of = {}
                for epoch in range(10):
                    for n in (16, 32):
      -                 mask = causal(n)
      +                 if n not in causal_of:
      +                     causal_of[n] = causal(n)
      +                 mask = causal_of[n]
                        self.step(mask, epoch)
    """)
    assert proposed(before, "mask = causal", "LCH105", "remember-result")[0] == after


def test_tensors_are_no_keys():
    before = """
        import torch


        def double(x):
            return x * 2


        x = torch.rand(3)
        for step in range(10):
            y = double(x)
    """
    assert not proposed(before, "return x * 2", "LCH105", "remember-result")


def test_what_draws_is_not_remembered():
    before = """
        import torch


        def noise(n):
            return torch.randn(n)


        for step in range(10):
            y = noise(3)
    """
    assert not proposed(before, "return torch.rand", "LCH105", "remember-result")


def test_what_the_caller_changes_is_not_remembered():
    before = """
        import torch


        def start(n):
            return torch.zeros(n)


        for step in range(10):
            y = start(3)
            y += step
    """
    assert not proposed(before, "return torch.zeros", "LCH105", "remember-result")


def test_what_reads_files_or_parameters_is_not_remembered():
    for result in ("json.loads(open(path).read())", "weight.detach().abs().sum() * path"):
        before = f"""
            import json

            import torch

            weight = torch.nn.Parameter(torch.ones(3))


            def total(path):
                return {result}


            for step in range(10):
                y = total(3)
                optimizer.step()
        """
        assert not proposed(before, "return ", "LCH105", "remember-result")
        assert not proposed(before, "y = total", "LCH105", "remember-result")
