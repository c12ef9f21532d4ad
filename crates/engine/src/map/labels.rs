//! Labels of a map: names of topics and of their merges, each in the middle of its documents.

use serde::{Deserialize, Serialize};

use crate::topics::NamedTopics;

/// A topic of the map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapTopic {
    pub number: usize,
    pub name: String,
    pub documents: u64,
}

/// A name on the map. A label of a merge gives way to those of its children when one looks closer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapLabel {
    pub text: String,
    /// The median of the coordinates of its documents.
    pub x: u16,
    pub y: u16,
    pub documents: u64,
    /// It shows while the map is divided into so many clusters: from the first number to the last.
    pub from: usize,
    pub to: usize,
}

/// Cells per axis in which medians are looked for.
const CELLS: usize = 1024;
/// Coordinates per cell.
const CELL: usize = (u16::MAX as usize + 1) / CELLS;

/// `places` are in the order of insertion, as the classes are.
pub(super) fn labels(places: &[[u16; 2]], found: &NamedTopics) -> (Vec<MapTopic>, Vec<MapLabel>) {
    let count = found.documents.len();
    let mut counts: Vec<[Vec<u32>; 2]> = (0..count).map(|_| [vec![0; CELLS], vec![0; CELLS]]).collect();
    for (place, class) in places.iter().zip(&found.classes) {
        let Some(class) = class else { continue };
        for (axis, &value) in place.iter().enumerate() {
            counts[usize::from(*class)][axis][usize::from(value) / CELL] += 1;
        }
    }
    let mut documents = found.documents.clone();
    for merge in &found.merges {
        let sum = |axis: usize| -> Vec<u32> {
            let [one, other] = merge.children.map(|child| &counts[child][axis]);
            one.iter().zip(other).map(|(a, b)| a + b).collect()
        };
        let joined = [sum(0), sum(1)];
        counts.push(joined);
        documents.push(merge.documents);
    }
    let topic = |number: usize| MapTopic { number, name: found.names[number].clone(), documents: documents[number] };
    let shown = shown(count, found);
    let label = |(node, counts): (usize, &[Vec<u32>; 2])| MapLabel {
        text: found.names[node].clone(),
        x: median(&counts[0]),
        y: median(&counts[1]),
        documents: documents[node],
        from: shown[node].0,
        to: shown[node].1,
    };
    let all = counts.iter().enumerate().map(label).filter(|label| label.documents > 0);
    ((0..count).map(topic).collect(), all.collect())
}

/// For how many clusters each topic and merge is one of them.
fn shown(count: usize, found: &NamedTopics) -> Vec<(usize, usize)> {
    let mut shown: Vec<(usize, usize)> = vec![(1, count); count];
    for (i, merge) in found.merges.iter().enumerate() {
        // After `i + 1` merges there are `count - i - 1` clusters.
        shown.push((1, count - i - 1));
        merge.children.iter().for_each(|&child| shown[child].0 = count - i);
    }
    shown
}

fn median(counts: &[u32]) -> u16 {
    let total: u64 = counts.iter().map(|&n| u64::from(n)).sum();
    let mut sum = 0;
    let cell = counts.iter().position(|&n| {
        sum += u64::from(n);
        2 * sum >= total && sum > 0
    });
    (cell.unwrap_or(CELLS / 2) * CELL + CELL / 2) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topics::hierarchy::Merge;

    #[test]
    fn labels_divide_the_map_at_every_level_and_lie_in_the_middle() {
        let merge = |children, documents| Merge { children, documents, cost: 0.0 };
        let found = NamedTopics {
            classes: vec![Some(0), Some(0), Some(1), Some(2), None],
            documents: vec![2, 1, 1],
            merges: vec![merge([1, 2], 2), merge([0, 3], 4)],
            names: ["a", "b", "c", "b c", "all"].map(str::to_owned).to_vec(),
        };
        let places = [[100, 100], [200, 100], [40_000, 100], [60_000, 50_000], [0, 0]];
        let (topics, labels) = labels(&places, &found);
        assert_eq!((topics.len(), topics[0].documents, topics[0].name.as_str()), (3, 2, "a"));
        // With any number of clusters, every topic is under exactly one label.
        for clusters in 1..=3 {
            let now: Vec<&MapLabel> = labels.iter().filter(|l| (l.from..=l.to).contains(&clusters)).collect();
            assert_eq!(now.len(), clusters);
            assert_eq!(now.iter().map(|l| l.documents).sum::<u64>(), 4);
        }
        assert!((i32::from(labels[0].x) - 100).abs() < 64 && (i32::from(labels[1].x) - 40_000).abs() < 64);
        assert!((i32::from(labels[4].y) - 100).abs() < 64, "the median of all: {:?}", labels[4]);
    }
}
