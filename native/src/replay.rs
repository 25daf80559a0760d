//! The longest path to every node of a graph, for many scenarios at once.

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
}
