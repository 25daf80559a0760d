//! Containment of calls, as `core/trace/nesting.py` defines it, and the order of table entries.

/// Columns of a trace, one element per row.
pub struct Rows<'a> {
    pub lane: &'a [i32],
    pub start_ns: &'a [i64],
    pub dur_ns: &'a [i64],
    pub kind: &'a [u8],
}

impl Rows<'_> {
    fn end_ns(&self, row: usize) -> i64 {
        self.start_ns[row].wrapping_add(self.dur_ns[row])
    }

    /// Return the rows whose kind has a rank, by lane, start, longest first, lowest rank, row.
    pub fn ordered(&self, ranks: &[u8; 256], n_lanes: usize) -> Vec<i64> {
        let is_member = |row: &usize| ranks[self.kind[*row] as usize] > 0;
        let mut starts = vec![0usize; n_lanes + 1];
        let n = self.kind.len();
        for row in (0..n).filter(is_member) {
            starts[self.lane[row] as usize + 1] += 1;
        }
        for lane in 0..n_lanes {
            starts[lane + 1] += starts[lane];
        }
        let mut members = vec![0i64; starts[n_lanes]];
        let mut next = starts.clone();
        for row in (0..n).filter(is_member) {
            let place = &mut next[self.lane[row] as usize];
            members[*place] = row as i64;
            *place += 1;
        }
        let key = |&row: &i64| {
            let row = row as usize;
            let rank = ranks[self.kind[row] as usize];
            (self.start_ns[row], std::cmp::Reverse(self.dur_ns[row]), rank)
        };
        for lane in starts.windows(2) {
            // files are almost sorted, which this sort makes use of
            members[lane[0]..lane[1]].sort_by_key(key);
        }
        members
    }

    /// Write the row of each member's innermost container, -1 without one.
    ///
    /// A container starts no later and ends no earlier, up to the tolerance, and the other starts
    /// before it ends.
    pub fn contain(&self, members: &[i64], tolerance_ns: i64, parent: &mut [i32]) {
        let mut before = -1i32;
        for &member in members {
            let row = member as usize;
            let (start_ns, end_ns) = (self.start_ns[row], self.end_ns(row));
            let mut above = before;
            if above >= 0 && self.lane[above as usize] != self.lane[row] {
                above = -1;
            }
            while above >= 0 {
                let above_end_ns = self.end_ns(above as usize);
                if above_end_ns + tolerance_ns >= end_ns && start_ns < above_end_ns {
                    break;
                }
                above = parent[above as usize];
            }
            parent[row] = above;
            before = row as i32;
        }
    }

    /// Write the row of each member's parent by the ids that were recorded.
    ///
    /// False where an id is missing or not unique, and nothing is written.
    pub fn by_id(
        &self,
        members: &[i64],
        id: &[i64],
        parent_id: &[i64],
        parent: &mut [i32],
    ) -> bool {
        let ids = members.iter().map(|&row| id[row as usize]);
        let (Some(low), Some(high)) = (ids.clone().min(), ids.max()) else {
            return true;
        };
        if low < 0 {
            return false;
        }
        // (id, place among the members); ids count up, so that a table is seldom much larger
        let Some(table) = Places::of(members, id, low, high) else {
            return false;
        };
        for (place, &row) in members.iter().enumerate() {
            let row = row as usize;
            parent[row] = match table.find(parent_id[row]) {
                // a parent opens before its child: damaged ids must not make a cycle
                Some(above) if above < place => {
                    let above = members[above];
                    if self.lane[above as usize] == self.lane[row] {
                        above as i32
                    } else {
                        -1
                    }
                }
                _ => -1,
            };
        }
        true
    }
}

/// Write what each member takes itself: its duration without what its direct children cover. Other rows stay.
///
/// `members` are in the order of [`Rows::ordered`].
pub fn own(start_ns: &[i64], dur_ns: &[i64], members: &[i64], parent: &[i32], own_ns: &mut [i64]) {
    let end_ns = |row: usize| start_ns[row].wrapping_add(dur_ns[row]);
    // children that cross are counted once: up to here those before it reach
    let mut reach = vec![i64::MIN; start_ns.len()];
    for &member in members {
        own_ns[member as usize] = dur_ns[member as usize];
    }
    for &member in members {
        let row = member as usize;
        let Ok(above) = usize::try_from(parent[row]) else { continue };
        let begin = start_ns[row].max(reach[above]);
        let stop = end_ns(row).min(end_ns(above));
        own_ns[above] = own_ns[above].wrapping_sub(stop.wrapping_sub(begin).max(0));
        reach[above] = reach[above].max(end_ns(row));
    }
    for &member in members {
        own_ns[member as usize] = own_ns[member as usize].max(0);
    }
}

/// Write which members have a proper ancestor in a mask; other rows stay. Containers stand before what they hold.
pub fn under(members: &[i64], parent: &[i32], mask: &[bool], out: &mut [bool]) {
    for &member in members {
        if let Ok(above) = usize::try_from(parent[member as usize]) {
            out[member as usize] = mask[above] || out[above];
        }
    }
}

/// Write which members have a proper descendant in a mask; other rows stay. Containers stand before what they hold.
pub fn above(members: &[i64], parent: &[i32], mask: &[bool], out: &mut [bool]) {
    for &member in members.iter().rev() {
        let row = member as usize;
        if let (true, Ok(above)) = (mask[row] || out[row], usize::try_from(parent[row])) {
            out[above] = true;
        }
    }
}

enum Places {
    /// From the lowest id on, place plus one.
    Table(i64, Vec<u32>),
    Sorted(Vec<(i64, u32)>),
}

impl Places {
    /// None where two members have the same id.
    fn of(members: &[i64], id: &[i64], low: i64, high: i64) -> Option<Places> {
        let width = (high - low) as usize;
        if width / 4 <= members.len() {
            let mut table = vec![0u32; width + 1];
            for (place, &row) in members.iter().enumerate() {
                let slot = &mut table[(id[row as usize] - low) as usize];
                if *slot != 0 {
                    return None;
                }
                *slot = place as u32 + 1;
            }
            return Some(Places::Table(low, table));
        }
        let mut sorted: Vec<(i64, u32)> =
            members.iter().zip(0..).map(|(&row, place)| (id[row as usize], place)).collect();
        sorted.sort();
        if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        Some(Places::Sorted(sorted))
    }

    fn find(&self, id: i64) -> Option<usize> {
        match self {
            Places::Table(low, table) => {
                let place = *table.get(usize::try_from(id.checked_sub(*low)?).ok()?)?;
                (place > 0).then(|| place as usize - 1)
            }
            Places::Sorted(sorted) => {
                let at = sorted.binary_search_by_key(&id, |pair| pair.0).ok()?;
                Some(sorted[at].1 as usize)
            }
        }
    }
}

/// Give codes the order of their first use; return the old codes in that order.
///
/// `merged` says which code stands for each one; -1 stays.
pub fn renumber(codes: &mut [i32], merged: &[i32]) -> Vec<i32> {
    let mut order = Vec::new();
    let mut position = vec![-1; merged.len()];
    for code in codes {
        if *code >= 0 {
            let old = merged[*code as usize] as usize;
            if position[old] < 0 {
                position[old] = order.len() as i32;
                order.push(old as i32);
            }
            *code = position[old];
        }
    }
    order
}

/// Write the rows by their code, those of a code in order, and where each code's rows begin.
///
/// Codes are below `first.len() - 1`.
pub fn group(codes: &[i32], rows: &mut [i32], first: &mut [i64]) {
    first.fill(0);
    for &code in codes {
        first[code as usize + 1] += 1;
    }
    for code in 1..first.len() {
        first[code] += first[code - 1];
    }
    let mut next = first.to_vec();
    for (row, &code) in (0..).zip(codes) {
        let place = &mut next[code as usize];
        rows[*place as usize] = row;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_under_all_that_hold_it() {
        let mut out = [false; 5];
        under(&[0, 2, 1, 3], &[-1, 2, 0, -1, -1], &[true, false, false, true, true], &mut out);
        assert_eq!(out, [false, true, true, false, false]);
    }

    #[test]
    fn what_holds_is_above_all_that_it_holds() {
        let mut out = [false; 5];
        above(&[0, 2, 1, 3], &[-1, 2, 0, -1, 3], &[false, true, false, true, true], &mut out);
        assert_eq!(out, [true, false, true, false, false]);
    }

    #[test]
    fn what_children_cover_is_not_a_rows_own() {
        // 0 holds 1 and 2, which cross each other, and 3, which passes its end; row 4 is no member
        let (start, dur) = ([0, 10, 15, 90, 0], [100, 10, 10, 20, 7]);
        let mut own_ns = [0; 5];
        own(&start, &dur, &[0, 1, 2, 3], &[-1, 0, 0, 0, -1], &mut own_ns);
        assert_eq!(own_ns, [75, 10, 10, 20, 0]);
    }

    const RANKS: [u8; 256] = {
        let mut ranks = [0; 256];
        ranks[1] = 2;
        ranks[2] = 1;
        ranks
    };

    #[test]
    fn members_are_ordered_by_lane_start_length_and_rank() {
        let rows = Rows {
            lane: &[1, 0, 0, 0, 1, 0, 0],
            start_ns: &[5, 9, 3, 3, 2, 3, 3],
            dur_ns: &[1, 1, 2, 4, 9, 4, 4],
            kind: &[1, 1, 1, 1, 1, 2, 7],
        };
        assert_eq!(rows.ordered(&RANKS, 2), [5, 3, 2, 1, 4, 0]);
    }

    #[test]
    fn the_innermost_container_is_the_parent() {
        let rows = Rows {
            lane: &[0, 0, 0, 0, 0, 1],
            start_ns: &[0, 10, 20, 45, 100, 10],
            dur_ns: &[100, 30, 10, 65, 0, 1],
            kind: &[1; 6],
        };
        let members = rows.ordered(&RANKS, 2);
        let mut parent = [-1; 6];
        rows.contain(&members, 0, &mut parent);
        // a partial overlap is no container, nor is one that has ended
        assert_eq!(parent, [-1, 0, 1, -1, 3, -1]);
        rows.contain(&members, 10, &mut parent);
        assert_eq!(parent[3], 0);
    }

    #[test]
    fn ids_name_the_parent_unless_they_are_damaged() {
        let rows =
            Rows { lane: &[0, 0, 0, 1], start_ns: &[1, 2, 3, 4], dur_ns: &[9; 4], kind: &[1; 4] };
        let members = rows.ordered(&RANKS, 2);
        for scale in [1, 1 << 40] {
            let id = [3, 4, 5, 6].map(|id| id * scale);
            let mut parent = [-1; 4];
            assert!(rows.by_id(&members, &id, &[-1, 3 * scale, 6 * scale, 5 * scale], &mut parent));
            assert_eq!(parent, [-1, 0, -1, -1]);
            assert!(!rows.by_id(&members, &[3, 4, 4, 6].map(|id| id * scale), &id, &mut parent));
            assert!(!rows.by_id(&members, &[3, -1, 4, 6], &id, &mut parent));
        }
    }

    #[test]
    fn codes_count_up_in_order_of_first_use() {
        let mut codes = [3, -1, 1, 0, 3, 2];
        assert_eq!(renumber(&mut codes, &[0, 1, 1, 3, 4]), [3, 1, 0]);
        assert_eq!(codes, [0, -1, 1, 2, 0, 1]);
    }

    #[test]
    fn rows_are_grouped_by_code_and_stay_in_order() {
        let (mut rows, mut first) = ([-1; 5], [-1; 5]);
        group(&[3, 0, 3, 1, 0], &mut rows, &mut first);
        assert_eq!(rows, [1, 4, 3, 0, 2]);
        assert_eq!(first, [0, 2, 3, 3, 5]);
    }
}
