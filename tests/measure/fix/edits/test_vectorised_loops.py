"""Loops over elements become expressions of whole arrays."""

from tests.measure.fix.proposing import change, proposed


def test_pixels_of_a_picture_are_cleaned_at_once():
    before, after = change("""
        import numpy as np

        H, W = 120, 160
        dark = np.zeros((H, W))
        gain = np.ones((H, W))


        def clean(img):
            out = np.zeros((H, W), dtype=np.float32)
      -     for r in range(H):
      -         for c in range(W):
      -             v = float(img[r, c]) - float(dark[r, c])
      -             v = v / gain[r, c]
      -             out[r, c] = min(max(v, 0.0), 255.0)
      +     v = img[:H, :W].astype(np.float64) - dark.astype(np.float64)
      +     v = v / gain
      +     out[:] = np.clip(v, 0.0, 255.0)
            return out
    """)
    assert proposed(before, "v = float", "HST020", "vectorised-loops")[0] == after


def test_a_condition_becomes_where():
    before, after = change("""
        import numpy as np


        class Camera:
            def threshold(self, img, level):
                h, w = img.shape[:2]
                mask = np.zeros_like(img)
      -         for y in range(h):
      -             for x in range(w):
      -                 if img[y, x] > level and img[y, x] < 250:
      -                     mask[y, x] = 255
      -                 else:
      -                     mask[y, x] = img[y, x] // 2
      +         mask[:h, :w] = np.where((img[:h, :w] > level) & (img[:h, :w] < 250), 255, img[:h, :w] // 2)
                return mask
    """)
    assert proposed(before, "if img", "HST114", "vectorised-loops")[0] == after


def test_neighbours_are_shifted_slices():
    before, after = change("""
        import torch

        x = torch.rand(1000)
        out = torch.zeros(998)
      - for i in range(998):
      -     out[i] = abs(x[i + 2] - 2 * x[i + 1] + x[i]) * i
      + out[:] = abs(x[2:1000] - 2 * x[1:999] + x[:998]) * torch.arange(998)
    """)
    assert proposed(before, "out[i]", "HST020", "vectorised-loops")[0] == after


def test_a_sum_over_elements():
    before, after = change("""
        import numpy as np


        def energy(a, weight):
            n = a.shape[0]
            a = np.asarray(a)
            total = 0.0
      -     for i in range(n):
      -         for j in range(3):
      -             total += a[i, j] ** 2 * weight[i]
      +     total += (a[:n, :3] ** 2 * weight[:n, None]).sum()
            return total
    """)
    assert proposed(before, "total +=", "LCH017", "vectorised-loops")[0] == after


def test_a_chain_stays():
    before = """
        import numpy as np

        out = np.zeros(100)
        for i in range(1, 100):
            out[i] = out[i - 1] * 0.9 + x[i]
    """
    assert not proposed(before, "out[i]", "HST020", "vectorised-loops")


def test_what_a_function_of_the_file_does_stays():
    before = """
        import numpy as np

        out = np.zeros(100)
        for i in range(100):
            out[i] = simulate(x[i])
    """
    assert not proposed(before, "out[i]", "HST020", "vectorised-loops")


def test_a_transposed_read_leaves_the_outer_loop():
    before, after = change("""
        import numpy as np

        out = np.zeros((9, 9))
        for i in range(9):
      -     for j in range(9):
      -         out[i, j] = a[j, i] + a[i, j]
      +     out[i, :9] = a[:9, i] + a[i, :9]
    """)
    assert proposed(before, "out[i, j]", "HST020", "vectorised-loops")[0] == after


def test_what_is_read_after_the_loop_stays():
    before = """
        import numpy as np

        out = np.zeros(9)
        for i in range(9):
            v = x[i] * 2
            out[i] = v
        print(v)
    """
    assert not proposed(before, "v = x", "HST020", "vectorised-loops")
