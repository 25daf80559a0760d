//! The longest path to every node of a graph, for many scenarios at once.

use std::collections::VecDeque;

/// A stretch of a graph in running order; its table has a row per node and a column per scenario.
///
/// The table begins with rows that are done; the others hold how long each node takes and become
/// when it finishes. `before` and `source` are rows of the table. Edges of node `i` go from
/// `edge_first[i]` to `edge_first[i + 1]`. An edge has a lag for each of `n_lags` equal groups of
/// columns.
pub struct Stretch<'a> {
    pub width: usize,
    pub n_done: usize,
    pub before: &'a [i64],
    pub edge_first: &'a [i64],
    pub source: &'a [i64],
    pub lag: &'a [i64],
    pub n_lags: usize,
}

impl Stretch<'_> {
    /// Run all nodes.
    pub fn run(&self, table: &mut [i64]) {
        let group = self.width / self.n_lags;
        let mut ready = vec![0; self.width];
        for (i, &before) in self.before.iter().enumerate() {
            let at = (self.n_done + i) * self.width;
            match usize::try_from(before) {
                Ok(row) => ready.copy_from_slice(&table[row * self.width..][..self.width]),
                Err(_) => ready.fill(0), // nothing begins before the origin
            }
            for edge in self.edge_first[i] as usize..self.edge_first[i + 1] as usize {
                let from = &table[self.source[edge] as usize * self.width..][..self.width];
                let lags = &self.lag[edge * self.n_lags..][..self.n_lags];
                for ((ready, from), &lag) in
                    ready.chunks_exact_mut(group).zip(from.chunks_exact(group)).zip(lags)
                {
                    for (ready, &from) in ready.iter_mut().zip(from) {
                        *ready = (*ready).max(from.wrapping_add(lag));
                    }
                }
            }
            for (finish, &ready) in table[at..at + self.width].iter_mut().zip(&ready) {
                *finish = finish.wrapping_add(ready);
            }
        }
    }
}

/// How long the nodes of a graph take in running order, in each variant, and what scenarios leave of it.
///
/// `takes` : for each variant the durations of all nodes, and what they take besides. `changes` : for each scenario
/// places, in order, and what is left of the node's duration there, NaN where the node is gone.
pub struct Steps<'a> {
    pub takes: Vec<(&'a [i64], &'a [i64])>,
    pub changes: Vec<(&'a [i32], &'a [f64])>,
}

impl Steps<'_> {
    /// Write how long the nodes from `begin` on take: a row for each, of a column for each variant and scenario.
    pub fn fill(&self, begin: usize, table: &mut [i64]) {
        let n_scenarios = self.changes.len();
        let width = self.takes.len() * n_scenarios;
        for (i, row) in table.chunks_exact_mut(width).enumerate() {
            for (group, (dur, still)) in row.chunks_exact_mut(n_scenarios).zip(&self.takes) {
                group.fill(dur[begin + i].wrapping_add(still[begin + i]));
            }
        }
        let end = begin + table.len() / width;
        for (s, (places, left)) in self.changes.iter().enumerate() {
            let from = places.partition_point(|&place| (place as usize) < begin);
            for (&place, &left) in places[from..].iter().zip(&left[from..]) {
                let at = place as usize;
                if at >= end {
                    break;
                }
                let row = &mut table[(at - begin) * width..][..width];
                for (takes, (dur, still)) in
                    row[s..].iter_mut().step_by(n_scenarios).zip(&self.takes)
                {
                    let shortened = still[at].wrapping_add((dur[at] as f64 * left) as i64);
                    *takes = if left.is_nan() { 0 } else { shortened };
                }
            }
        }
    }
}

/// The lanes of a graph, whose nodes follow each other, and what the nodes wait for.
///
/// Edges of node `i` go from `edge_first[i]` to `edge_first[i + 1]`, and come from other lanes.
pub struct Lanes<'a> {
    pub first: &'a [i64],
    pub edge_first: &'a [i64],
    pub source: &'a [i64],
}

impl Lanes<'_> {
    /// Return an order to run the nodes in, as runs `[lane, first node, one past the last]`: every lane goes on as far
    /// as what ran before allows. None where causes form a circle.
    pub fn runs(&self) -> Option<Vec<[i64; 3]>> {
        let n_lanes = self.first.len() - 1;
        let mut lane_of = vec![0u32; self.edge_first.len() - 1];
        for (lane, ends) in self.first.windows(2).enumerate() {
            lane_of[ends[0] as usize..ends[1] as usize].fill(lane as u32);
        }
        let mut done = self.first[..n_lanes].to_vec();
        let mut waiting: Vec<Vec<(i64, usize)>> = vec![Vec::new(); n_lanes];
        let mut ready: VecDeque<usize> = (0..n_lanes).collect();
        let mut runs = Vec::new();
        while let Some(lane) = ready.pop_front() {
            let (begin, end) = (done[lane], self.first[lane + 1]);
            let mut node = begin;
            while node < end {
                let edges = self.edge_first[node as usize]..self.edge_first[node as usize + 1];
                let missing = self.source[edges.start as usize..edges.end as usize]
                    .iter()
                    .find(|&&source| source >= done[lane_of[source as usize] as usize]);
                if let Some(&source) = missing {
                    waiting[lane_of[source as usize] as usize].push((source, lane));
                    break;
                }
                node += 1;
            }
            if node == begin {
                continue;
            }
            runs.push([lane as i64, begin, node]);
            done[lane] = node;
            let asleep = &mut waiting[lane];
            asleep.retain(|&(source, other)| {
                let still = source >= node;
                if !still {
                    ready.push_back(other);
                }
                still
            });
        }
        (0..n_lanes).all(|lane| done[lane] == self.first[lane + 1]).then_some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_waits_for_the_latest_of_its_causes() {
        // a row done earlier, then two lanes: 1 -> 3 on one, 2 on the other
        let stretch = Stretch {
            width: 2,
            n_done: 1,
            before: &[0, -1, 1],
            edge_first: &[0, 0, 1, 2],
            source: &[0, 2],
            lag: &[5, 50, 1, -1000],
            n_lags: 2,
        };
        let mut table = vec![10, 10, 3, 4, 7, 7, 2, 2];
        stretch.run(&mut table);
        assert_eq!(table, [10, 10, 13, 14, 22, 67, 25, 16]);
    }

    #[test]
    fn columns_of_a_group_share_a_lag() {
        let stretch = Stretch {
            width: 4,
            n_done: 1,
            before: &[-1],
            edge_first: &[0, 1],
            source: &[0],
            lag: &[1, 2],
            n_lags: 2,
        };
        let mut table = vec![10, 20, 30, -40, 1, 1, 1, 1];
        stretch.run(&mut table);
        assert_eq!(table[4..], [12, 22, 33, 1]);
    }

    #[test]
    fn scenarios_change_what_nodes_take() {
        // two variants of three nodes; one scenario halves node 1, another takes node 2 away
        let steps = Steps {
            takes: vec![(&[10, 21, 30], &[1, 1, 1]), (&[1, 2, 3], &[0, 0, 0])],
            changes: vec![(&[1], &[0.5]), (&[2], &[f64::NAN])],
        };
        let mut table = [0; 12];
        steps.fill(0, &mut table);
        assert_eq!(table, [11, 11, 1, 1, 11, 22, 1, 2, 31, 0, 3, 0]);
        steps.fill(2, &mut table[..4]);
        assert_eq!(table[..4], [31, 0, 3, 0]);
    }

    #[test]
    fn lanes_go_on_as_far_as_their_causes_allow() {
        // nodes 0, 1 | 2, 3 | 4: 3 waits for 1, and 1 for 4
        let lanes =
            Lanes { first: &[0, 2, 4, 5], edge_first: &[0, 0, 1, 1, 2, 2], source: &[4, 1] };
        let runs = lanes.runs().unwrap();
        assert_eq!(runs, [[0, 0, 1], [1, 2, 3], [2, 4, 5], [0, 1, 2], [1, 3, 4]]);
    }

    #[test]
    fn a_circle_has_no_order() {
        let lanes = Lanes { first: &[0, 1, 2], edge_first: &[0, 1, 2], source: &[1, 0] };
        assert!(lanes.runs().is_none());
    }
}
