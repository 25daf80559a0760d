"""Reports, checkpoints and evaluations run every so many steps."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_a_metric_that_adds_up_every_batch_says_so():
    before = """
        for step, (x, y) in enumerate(loader):
            metric.update(model(x), y)
            if step % 10 == 0:
                print(metric.compute())
    """
    assert all(item.changes for item in proposals(before, "metric.update", "HST106", "less-often"))


def test_nothing_where_all_names_of_a_counter_are_taken() -> None:
    text = """
        step, i, n_step, turn = start()
        for batch in loader:
            loss = train(batch)
            loss.backward()
            print(loss.item())
    """
    assert proposed(text.replace("turn =", "t ="), "print(", "HST101", "less-often")
    assert not proposed(text, "print(", "HST101", "less-often")


def test_what_few_turns_use_is_computed_in_those():
    before, after = change("""
        for epoch in range(400):
            train(model, x, y)
      -     val_acc = accuracy(model, x_val, y_val)
            if epoch % 20 == 0:
      +         val_acc = accuracy(model, x_val, y_val)
                print(epoch, val_acc)
    """)
    assert proposed(before, "val_acc = ", "HST126", "less-often") == [after]
