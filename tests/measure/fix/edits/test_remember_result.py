"""What a function gives for the same arguments is remembered."""

from tests.measure.fix.proposing import proposed, source


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
