//! Half-open intervals, as `core/intervals.py` defines what is done with them.

/// Start and end, in ns.
pub type Span = [i64; 2];

/// Write the time covered by any of the spans, sorted and disjoint; return how many intervals that is.
pub fn union(spans: &[Span], out: &mut [Span]) -> usize {
    let mut n_some = 0;
    for (to, &span) in out.iter_mut().zip(spans.iter().filter(|span| span[1] > span[0])) {
        *to = span;
        n_some += 1;
    }
    out[..n_some].sort_by_key(|span| span[0]);
    let mut n = 0;
    for at in 0..n_some {
        let span = out[at];
        if n > 0 && span[0] <= out[n - 1][1] {
            out[n - 1][1] = out[n - 1][1].max(span[1]);
        } else {
            out[n] = span;
            n += 1;
        }
    }
    n
}

/// Write the time covered by both, each sorted and disjoint; return how many intervals that is.
pub fn intersect(left: &[Span], right: &[Span], out: &mut [Span]) -> usize {
    let (few, many) = if left.len() > right.len() { (right, left) } else { (left, right) };
    let (mut first, mut n) = (0, 0);
    for one in few {
        first = place(many, first, |span| span[1] <= one[0]);
        for other in many[first..].iter().take_while(|span| span[0] < one[1]) {
            out[n] = [one[0].max(other[0]), one[1].min(other[1])];
            n += 1;
        }
    }
    n
}

/// Write how many ns of each span, in any order, a cover covers, which is sorted, disjoint and not empty.
pub fn covered(spans: &[Span], cover: &[Span], out: &mut [i64]) {
    let mut total = Vec::with_capacity(cover.len());
    let mut sum = 0i64;
    for span in cover {
        total.push(sum);
        sum = sum.wrapping_add(span[1].wrapping_sub(span[0]));
    }
    // spans are mostly in order: each is looked for from where the one before it was
    let mut at = 0;
    let mut until = |time: i64| {
        at = place(cover, at, |span| span[0] <= time);
        match at.checked_sub(1) {
            None => 0,
            Some(last) => {
                time.min(cover[last][1]).wrapping_add(total[last].wrapping_sub(cover[last][0]))
            }
        }
    };
    for (span, length) in spans.iter().zip(out) {
        let before = until(span[0]);
        *length = until(span[1]).wrapping_sub(before).max(0);
    }
}

/// Return how many spans at the beginning pass a test that none passes behind one that fails; `near` is a guess.
fn place(spans: &[Span], near: usize, test: impl Fn(&Span) -> bool) -> usize {
    let (mut low, mut high, mut step) = (0, spans.len(), 1);
    if near > 0 && !test(&spans[near - 1]) {
        high = near - 1;
        while high > 0 {
            let below = high.saturating_sub(step);
            if test(&spans[below]) {
                low = below + 1;
                break;
            }
            (high, step) = (below, 2 * step);
        }
    } else {
        low = near;
        while low < high {
            let above = (low + step - 1).min(high - 1);
            if !test(&spans[above]) {
                high = above;
                break;
            }
            (low, step) = (above + 1, 2 * step);
        }
    }
    low + spans[low..high].partition_point(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_one_in_any_order() {
        let mut out = [[0; 2]; 4];
        assert_eq!(union(&[[5, 7], [9, 9], [1, 3], [3, 4]], &mut out), 2);
        assert_eq!(out[..2], [[1, 4], [5, 7]]);
    }

    #[test]
    fn what_both_cover() {
        let mut out = [[0; 2]; 5];
        assert_eq!(intersect(&[[0, 4], [6, 9]], &[[1, 2], [3, 7], [8, 20]], &mut out), 4);
        assert_eq!(out[..4], [[1, 2], [3, 4], [6, 7], [8, 9]]);
    }

    #[test]
    fn a_place_is_found_from_everywhere() {
        let spans: Vec<Span> = (0..20).map(|start| [2 * start, 2 * start + 1]).collect();
        for near in 0..=20 {
            for time in -1..41 {
                let expected = spans.iter().filter(|span| span[0] <= time).count();
                assert_eq!(place(&spans, near, |span| span[0] <= time), expected);
            }
        }
    }

    #[test]
    fn what_is_covered_of_each() {
        let mut out = [0; 4];
        covered(&[[0, 10], [9, 3], [4, 5], [0, 2]], &[[1, 3], [4, 8]], &mut out);
        assert_eq!(out, [6, 0, 1, 1]);
    }
}
