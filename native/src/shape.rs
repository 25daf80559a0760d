//! Where the next value stands and what it is, mostly known from the event before.
//!
//! What stands between two values (a comma, white space, a key, brackets) is nearly always what
//! stood there in an earlier event. [`Shapes`] remembers such pieces of text as a tree: a node is
//! what has been seen of an event so far, an edge the text up to the next value. Only text that has
//! been parsed once becomes an edge, so that following one means what parsing it again would.

use crate::text::{at, word, PADDING};

/// What to do with the value that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Name,
    Phase,
    Cat,
    Pid,
    Tid,
    Ts,
    Dur,
    /// Arguments that are no object: there are none, then.
    NoArgs,
    Number(u8),
    Raw(u8),
    Skip,
    /// There is no further value: the event ends here.
    End,
}

/// What has been seen of an event so far.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub at_start: bool,
    pub in_args: bool,
    /// Fields of the event, one bit each.
    pub seen: u32,
    /// Arguments that are kept, one bit per slot.
    pub has: u64,
}

const START: Place = Place { at_start: true, in_args: false, seen: 0, has: 0 };

const WORDS: usize = 8;
const MAX_EDGES: usize = 8;
/// Beyond, the tree is begun again: a file of that many shapes has none worth remembering.
const MAX_NODES: usize = 2048;
/// Beyond, the rest of an event is read and not remembered: its keys cost no memory.
const MAX_NODES_IN_EVENT: usize = 2 * MAX_NODES;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Edge {
    /// All words but the last, which may be a part of one.
    words: [u64; WORDS - 1],
    n_words: u32,
    last: u32,
    last_word: u64,
    mask: u64,
    len: u32,
    action: Action,
    target: u32,
    /// The next edge of the same node.
    sibling: u32,
}

struct Node {
    place: Place,
    first: u32,
    n_edges: u32,
}

pub struct Shapes {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

impl Default for Shapes {
    fn default() -> Self {
        Shapes { nodes: vec![Node { place: START, first: NONE, n_edges: 0 }], edges: Vec::new() }
    }
}

impl Shapes {
    /// The node before the first value.
    pub const ROOT: usize = 0;

    pub fn place(&self, node: usize) -> &Place {
        &self.nodes[node].place
    }

    /// Return action, position of the value and next node if the text at `i` is known.
    #[inline(always)]
    pub fn follow(&self, text: &[u8], i: usize, node: usize) -> Option<(Action, usize, usize)> {
        let mut next = self.nodes[node].first;
        while let Some(edge) = self.edges.get(next as usize) {
            let mut differs = (word(text, i + edge.last as usize) ^ edge.last_word) & edge.mask;
            let mut at_word = i;
            for known in &edge.words[..edge.n_words as usize] {
                differs |= word(text, at_word) ^ known;
                at_word += 8;
            }
            let end = i + edge.len as usize;
            // a wider gap than the one remembered is another way
            if differs == 0 && (at(text, end) > b' ' || edge.action == Action::End) {
                return Some((edge.action, end, edge.target as usize));
            }
            next = edge.sibling;
        }
        None
    }

    /// Remember that `text` leads from a node to an action; return the node behind it.
    pub fn learn(&mut self, node: usize, text: &[u8], action: Action, place: Place) -> usize {
        let new = Node { place, first: NONE, n_edges: 0 };
        let target = self.nodes.len().min(MAX_NODES_IN_EVENT);
        let is_full = target == MAX_NODES_IN_EVENT;
        match self.nodes.get_mut(target) {
            Some(last) => *last = new, // no way leads to it: it is used again and again
            None => self.nodes.push(new),
        }
        let from = &mut self.nodes[node];
        // the text before no arguments is how the text before some begins
        let is_unclear = action == Action::NoArgs;
        if is_unclear
            || is_full
            || text.is_empty()
            || text.len() > 8 * WORDS
            || from.n_edges as usize == MAX_EDGES
        {
            // a node without a way to it: good for this event
            return target;
        }
        let mut padded = text.to_vec();
        padded.resize(text.len() + PADDING, 0);
        let n_words = (text.len() - 1) / 8;
        let mut words = [0; WORDS - 1];
        for (k, one) in words.iter_mut().enumerate().take(n_words) {
            *one = word(&padded, 8 * k);
        }
        let edge = Edge {
            words,
            n_words: n_words as u32,
            last: 8 * n_words as u32,
            last_word: word(&padded, 8 * n_words),
            mask: !0 >> (8 * (8 * (n_words + 1) - text.len())),
            len: text.len() as u32,
            action,
            target: target as u32,
            sibling: from.first,
        };
        from.first = self.edges.len() as u32;
        from.n_edges += 1;
        self.edges.push(edge);
        target
    }

    /// Begin again when too much has been learnt; only between two events.
    #[inline(always)]
    pub fn tidy(&mut self) {
        if self.nodes.len() > MAX_NODES {
            *self = Shapes::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_is_followed() {
        let mut shapes = Shapes::default();
        let texts: Vec<String> = (1..=70).map(|n| ", \"key\": ".repeat(9)[..n].into()).collect();
        let mut node = Shapes::ROOT;
        for text in &texts {
            let next = shapes.learn(node, text.as_bytes(), Action::Skip, START);
            let mut padded = text.as_bytes().to_vec();
            padded.resize(text.len() + PADDING, b'x');
            let found = shapes.follow(&padded, 0, node);
            if text.len() <= 64 {
                assert_eq!(found, Some((Action::Skip, text.len(), next)));
                padded[text.len() - 1] ^= 1;
                assert_eq!(shapes.follow(&padded, 0, node), None);
            } else {
                assert_eq!(found, None);
            }
            node = next;
        }
    }

    #[test]
    fn an_event_of_many_keys_costs_no_memory_for_each() {
        let mut shapes = Shapes::default();
        let mut node = Shapes::ROOT;
        for n in 0..100_000 {
            let place = Place { seen: n, ..START };
            node = shapes.learn(node, b",\"\":", Action::Skip, place);
            assert_eq!(shapes.place(node).seen, n);
        }
        assert_eq!(shapes.follow(&[b','; 2 * PADDING], 0, node), None);
        assert!(shapes.nodes.len() <= MAX_NODES_IN_EVENT + 1);
        assert!(shapes.edges.len() <= MAX_NODES_IN_EVENT);
        shapes.tidy();
        assert_eq!(shapes.nodes.len(), 1);
    }

    #[test]
    fn no_more_is_remembered_than_is_worth_it() {
        let mut shapes = Shapes::default();
        for n in 0..100_000 {
            shapes.tidy();
            shapes.learn(Shapes::ROOT, n.to_string().as_bytes(), Action::End, START);
        }
        assert!(shapes.nodes.len() <= MAX_NODES + 1 && shapes.edges.len() <= MAX_EDGES);
    }
}
