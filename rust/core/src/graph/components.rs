//! Rings of a directed graph: its strongly connected components, without recursion.

/// Edges grouped by the place that they start from.
#[derive(Debug, Clone)]
pub(super) struct Grouped<T> {
    /// Where the group of each place begins; one more than there are places.
    starts: Vec<usize>,
    items: Vec<T>,
}

impl<T: Copy> Grouped<T> {
    /// Groups `items` by place, each group in the order of `items`. Every place is below `places`.
    pub(super) fn new(places: usize, items: impl Iterator<Item = (u32, T)> + Clone) -> Self {
        let mut starts = vec![0; places + 1];
        for (place, _) in items.clone() {
            starts[place as usize + 1] += 1;
        }
        for place in 0..places {
            starts[place + 1] += starts[place];
        }
        let mut free = starts.clone();
        let mut grouped = Vec::new();
        if let Some((_, some)) = items.clone().next() {
            grouped.resize(starts[places], some);
        }
        for (place, item) in items {
            grouped[free[place as usize]] = item;
            free[place as usize] += 1;
        }
        Self { starts, items: grouped }
    }

    /// The group of `place`.
    pub(super) fn of(&self, place: u32) -> &[T] {
        &self.items[self.starts[place as usize]..self.starts[place as usize + 1]]
    }
}

const UNSEEN: u32 = u32::MAX;

/// A place under examination, with the number of its edges already looked at.
struct Frame {
    place: u32,
    edges_seen: usize,
}

/// The number of components, and the component of each place. Tarjan's algorithm with its own
/// stack; time is linear in places and edges.
pub(super) fn components<T: Copy>(
    places: u32,
    edges: &Grouped<T>,
    head: impl Fn(T) -> u32,
) -> (u32, Vec<u32>) {
    let mut component = vec![UNSEEN; places as usize];
    let mut entered = vec![UNSEEN; places as usize];
    let mut lowest = vec![UNSEEN; places as usize];
    let mut open: Vec<u32> = Vec::new();
    let mut frames: Vec<Frame> = Vec::new();
    let (mut clock, mut found) = (0, 0);
    for root in 0..places {
        if entered[root as usize] != UNSEEN {
            continue;
        }
        frames.push(Frame { place: root, edges_seen: 0 });
        while let Some(frame) = frames.last_mut() {
            let place = frame.place as usize;
            if frame.edges_seen == 0 && entered[place] == UNSEEN {
                entered[place] = clock;
                lowest[place] = clock;
                clock += 1;
                open.push(frame.place);
            }
            if let Some(&edge) = edges.of(frame.place).get(frame.edges_seen) {
                frame.edges_seen += 1;
                let next = head(edge);
                if entered[next as usize] == UNSEEN {
                    frames.push(Frame { place: next, edges_seen: 0 });
                } else if component[next as usize] == UNSEEN {
                    lowest[place] = lowest[place].min(entered[next as usize]);
                }
                continue;
            }
            frames.pop();
            if let Some(above) = frames.last() {
                let above = above.place as usize;
                lowest[above] = lowest[above].min(lowest[place]);
            }
            if lowest[place] == entered[place] {
                // Everything opened since this place reaches it and is reached from it.
                while let Some(member) = open.pop() {
                    component[member as usize] = found;
                    if member as usize == place {
                        break;
                    }
                }
                found += 1;
            }
        }
    }
    (found, component)
}
