"""Reports, checkpoints and evaluations run every so many steps."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_a_checkpoint_is_saved_now_and_then_and_at_the_end():
    before, after = change("""
        import torch

        for step in range(1000):
            loss = train(model)
      -     torch.save(model.state_dict(), "last.pt")
      +     if step % 50 == 0:
      +         torch.save(model.state_dict(), "last.pt")
      + torch.save(model.state_dict(), "last.pt")
        print(loss)
    """)
    assert proposed(before, "torch.save", "HST102", "less-often")[0] == after


def test_a_trainer_counts_its_batches():
    before, after = change("""
        class Trainer:
            def fit(self, loader, val_loader):
      -         for x, y in loader:
      +         for step, (x, y) in enumerate(loader):
                    self.step(x, y)
      -             self.model.eval()
      -             acc = self.evaluate(val_loader)
      -             self.model.train()
      -             print(f"accuracy {acc:.3f}")
      +             if step % 50 == 0:
      +                 self.model.eval()
      +                 acc = self.evaluate(val_loader)
      +                 self.model.train()
      +                 print(f"accuracy {acc:.3f}")
    """)
    assert proposed(before, "self.evaluate", "HST123", "less-often")[0] == after


def test_a_metric_is_computed_where_it_is_shown():
    before, after = change("""
        def run(model, stream):
            meter = Meter()
            for i, (x, y) in enumerate(stream):
                meter.update(model(x), y)
      -         postfix = {"acc": meter.accuracy(), "auroc": meter.auroc()}
                if i % 25 == 0:
      +             postfix = {"acc": meter.accuracy(), "auroc": meter.auroc()}
                    show(i, **postfix)
            return meter
    """)
    assert proposed(before, "postfix =", "HST124", "less-often")[0] == after


def test_an_update_of_a_meter_goes_where_it_is_shown():
    before, after = change("""
        def run(model, stream, total):
            for step, (photos, ids) in enumerate(stream, 1):
                metric.update(model(photos), ids)
      -         meter.values.update(metric.compute())
                if step % log_every == 0 or step == total:
      +             meter.values.update(metric.compute())
                    meter.show(step, total)
            return meter.values
    """)
    assert proposed(before, "meter.values", "HST106", "less-often")[0] == after


def test_pictures_follow_the_interval_of_the_logs():
    before, after = change("""
        for it, batch in enumerate(loader):
            loss = train(batch)
            if it % args.log_every == 0:
                print(loss)
      -     grid = make_grid(batch)
      -     writer.add_images("x", grid, it)
      +     if it % args.log_every == 0:
      +         grid = make_grid(batch)
      +         writer.add_images("x", grid, it)
    """)
    assert proposed(before, "add_images", "HST122", "less-often")[0] == after


def test_a_callback_has_the_step():
    before, after = change("""
        class Watch:
            def on_step(self, step, model):
      -         for name, p in model.named_parameters():
      -             self.writer.add_histogram(name, p, step)
      +         if step % 50 == 0:
      +             for name, p in model.named_parameters():
      +                 self.writer.add_histogram(name, p, step)
    """)
    assert proposed(before, "add_histogram", "HST122", "less-often")[0] == after


def test_what_trains_stays():
    before = """
        for step in range(100):
            log = model.fit_step(step)
            log.backward()
    """
    assert not proposed(before, "model.fit_step", "HST115", "less-often")


def test_what_the_loop_reads_again_stays():
    before = """
        for step in range(100):
            metric = evaluate(model)
            if metric > best:
                break
    """
    assert not proposed(before, "metric =", "HST124", "less-often")


def test_rows_of_a_log_are_not_dropped():
    before = """
        for step in range(100):
            loss = train(step)
            with open("log.csv", "a") as f:
                f.write(f"{step},{loss}\\n")
    """
    assert not proposed(before, "open(", "HST101", "less-often")


def test_an_evaluation_of_the_file_runs_now_and_then():
    before, after = change("""
        def accuracy(model, loader):
            correct = 0
            for x, y in loader:
                correct += (model(x).argmax(1) == y).sum()
            return correct


        def fit(model, loader, val_loader, steps):
            history = []
            for step in range(steps):
                train_step(model, next_batch(step))
      -         acc = accuracy(model, val_loader)
      -         history.append(acc)
      +         if step % 50 == 0:
      +             acc = accuracy(model, val_loader)
      +             history.append(acc)
      +     acc = accuracy(model, val_loader)
      +     history.append(acc)
            return history, acc
    """)
    assert proposed(before, "acc = accuracy", "HST123", "less-often")[0] == after


def test_a_sum_over_all_steps_stays():
    before = """
        for step, (x, y) in enumerate(loader):
            confusion[y] += metric_of(x)
            total += len(x)
    """
    assert not proposed(before, "confusion", "LCH017", "less-often")


def test_what_any_finding_saves_is_saved_at_the_end_as_well():
    before, after = change("""
        def fit(model, optimizer, batches, steps, path):
            for step in range(steps):
                loss = model(batches[step])
                loss.backward()
                optimizer.step()
      -         save_checkpoint(path, model, optimizer, step, loss)
      +         if step % 50 == 0:
      +             save_checkpoint(path, model, optimizer, step, loss)
      +     save_checkpoint(path, model, optimizer, step, loss)
    """)
    assert proposed(before, "save_checkpoint", "HST114", "less-often")[0] == after


def test_a_metric_that_adds_up_every_batch_says_so():
    before = """
        for step, (x, y) in enumerate(loader):
            metric.update(model(x), y)
            if step % 10 == 0:
                print(metric.compute())
    """
    assert all(item.changes for item in proposals(before, "metric.update", "HST106", "less-often"))
