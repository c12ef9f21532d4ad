//! A map of an index: its documents on a plane, similar ones near each other, with the names of topics on it.
//!
//! Landmarks stand for all documents: their places come from exact t-SNE, and every document goes between the landmarks that
//! are nearest to its code. No vector of a document is built, so a million documents take seconds. The map depends on the
//! documents and the options, not on threads or segments.

mod export;
mod kept;
mod labels;
mod landmarks;
mod layout;
mod place;
#[cfg(test)]
mod tests;
mod wire;

use kernels::dropout::mix;
use sha2::{Digest, Sha256};

use crate::clusters::points::Points;
use crate::corpus::DocId;
use crate::index::{Index, Record, Subset, Walk};
use crate::topics::{self, TopicsConfig};
use crate::{Error, Progress, Result};
pub use export::{HtmlMap, HtmlMapConfig, write_html};
pub use kept::{keep, kept};
pub use labels::{MapLabel, MapTopic};
pub use wire::{MAGIC, VERSION};

/// The topic of documents that are far from every topic.
pub const NO_TOPIC: u16 = u16::MAX;

/// Corners of an area at most.
pub const MAX_CORNERS: usize = 10_000;

/// Points that are compared with an area between two looks at whether anybody waits.
const AT_ONCE: usize = 4096;

/// How a map is made.
#[derive(Clone, Debug, PartialEq)]
pub struct MapConfig {
    /// Number of topics that colour and label the map; `None` chooses it.
    pub topics: Option<usize>,
    /// Of topics and landmarks. The same seed gives the same map.
    pub seed: u64,
}

impl Default for MapConfig {
    fn default() -> Self {
        MapConfig { topics: None, seed: TopicsConfig::default().seed }
    }
}

impl MapConfig {
    pub fn validate(&self) -> Result<()> {
        self.topics().validate()
    }

    fn topics(&self) -> TopicsConfig {
        TopicsConfig { topics: self.topics, seed: self.seed, ..TopicsConfig::default() }
    }
}

/// Documents on a plane. A point is a document; the order of points is that of a hash, so that the first `n` are an even sample.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentMap {
    /// Tells it from a map of other documents or with other places.
    pub fingerprint: u64,
    /// Coordinates by point. `y` grows upwards.
    pub x: Vec<u16>,
    pub y: Vec<u16>,
    /// Topics by point, [`NO_TOPIC`] for outliers.
    pub topic: Vec<u16>,
    pub topics: Vec<MapTopic>,
    pub labels: Vec<MapLabel>,
    /// Insertion sequences in rising order, and the point of each.
    sequences: Vec<u64>,
    points: Vec<u32>,
    /// By point: its position in `sequences`.
    places: Vec<u32>,
}

/// Makes a map of the current commit.
pub fn make(index: &Index, config: &MapConfig, progress: &dyn Progress) -> Result<DocumentMap> {
    config.validate()?;
    let walk = index.walk()?;
    if u32::try_from(walk.len()).is_err() {
        return Err(Error::config(format!("the index has {} documents; a map holds at most {}", walk.len(), u32::MAX)));
    }
    let sequences = sequences(&walk, progress)?;
    let points = Points::new(index.model().codebooks(), &walk.codes()?);
    if points.len() == 0 {
        return Err(Error::config("the index has no documents to put on a map"));
    }
    let landmarks = landmarks::choose(&points, config.seed, progress)?;
    let plane = layout::lay_out(&landmarks, progress)?;
    progress.stage("placing documents", Some(points.len() as u64));
    let places = place::places(&points, &landmarks, &plane, &sequences);
    progress.advance(points.len() as u64);
    let found = topics::find_named(&walk, &points, &config.topics(), progress)?;
    let (topics, labels) = labels::labels(&places, &found);
    let classes = found.classes.iter().map(|class| class.unwrap_or(NO_TOPIC)).collect();
    Ok(DocumentMap::new(places, classes, sequences, topics, labels))
}

fn sequences(walk: &Walk, progress: &dyn Progress) -> Result<Vec<u64>> {
    if progress.interrupted() {
        return Err(Error::Interrupted);
    }
    let reader = walk.reader();
    Ok((0..walk.len()).map(|i| reader.sequence(walk.address(i))).collect())
}

impl DocumentMap {
    /// `places` and `classes` are in the order of insertion.
    fn new(
        places: Vec<[u16; 2]>,
        classes: Vec<u16>,
        sequences: Vec<u64>,
        topics: Vec<MapTopic>,
        labels: Vec<MapLabel>,
    ) -> DocumentMap {
        let mut order: Vec<u32> = (0..sequences.len() as u32).collect();
        order.sort_by_cached_key(|&i| (mix(0, sequences[i as usize]), i));
        let mut points = vec![0; order.len()];
        order.iter().zip(0u32..).for_each(|(&i, point)| points[i as usize] = point);
        let by_point = |value: &dyn Fn(usize) -> u16| order.iter().map(|&i| value(i as usize)).collect::<Vec<u16>>();
        let (x, y, topic) = (by_point(&|i| places[i][0]), by_point(&|i| places[i][1]), by_point(&|i| classes[i]));
        let mut hash = Sha256::new();
        sequences.iter().for_each(|sequence| hash.update(sequence.to_le_bytes()));
        [&x, &y, &topic].into_iter().flatten().for_each(|value| hash.update(value.to_le_bytes()));
        let fingerprint = u64::from_le_bytes(hash.finalize()[..8].try_into().expect("32 bytes"));
        DocumentMap { fingerprint, x, y, topic, topics, labels, sequences, points, places: order }
    }

    pub fn len(&self) -> usize {
        self.x.len()
    }

    pub fn is_empty(&self) -> bool {
        self.x.is_empty()
    }

    /// The points of documents, by id; `None` where a document is not in the index, or newer than the map.
    pub fn find(&self, index: &Index, ids: &[DocId], progress: &dyn Progress) -> Result<Vec<Option<u32>>> {
        let point = |sequence: u64| self.sequences.binary_search(&sequence).ok().map(|at| self.points[at]);
        Ok(index.sequences_of(ids, progress)?.into_iter().map(|sequence| sequence.and_then(point)).collect())
    }

    /// The documents of points; `None` where one was deleted or changed since. Points must be less than [`DocumentMap::len`].
    pub fn documents(&self, index: &Index, points: &[u32], progress: &dyn Progress) -> Result<Vec<Option<Record>>> {
        let sequences: Vec<u64> =
            points.iter().map(|&point| self.sequences[self.places[point as usize] as usize]).collect();
        index.at_sequences(&sequences, progress)
    }

    /// The documents inside a polygon, by the even-odd rule. Its sides may cross.
    pub fn inside(&self, polygon: &[[f64; 2]], progress: &dyn Progress) -> Result<Subset> {
        if !(3..=MAX_CORNERS).contains(&polygon.len()) {
            return Err(Error::config(format!("an area has {} corners; give 3 to {MAX_CORNERS}", polygon.len())));
        }
        if let Some(corner) = polygon.iter().flatten().find(|v| !(-1e6..=1e6).contains(*v)) {
            return Err(Error::config(format!("a corner of the area is at {corner}; give -1000000 to 1000000")));
        }
        let range = |axis: usize| {
            let values = || polygon.iter().map(|corner| corner[axis]);
            values().fold(f64::INFINITY, f64::min)..=values().fold(f64::NEG_INFINITY, f64::max)
        };
        let (across, up) = (range(0), range(1));
        let place = |i: usize| (f64::from(self.x[i]), f64::from(self.y[i]));
        let is_inside = |&i: &usize| {
            let (x, y) = place(i);
            across.contains(&x) && up.contains(&y) && is_inside(x, y, polygon)
        };
        let mut inside = Vec::new();
        // Parts are so small that a look comes soon with all corners that are allowed, too.
        for begin in (0..self.len()).step_by(AT_ONCE) {
            progress.go_on()?;
            let part = (begin..self.len().min(begin + AT_ONCE)).filter(is_inside);
            inside.extend(part.map(|i| self.sequences[self.places[i] as usize]));
        }
        Ok(Subset::new(inside))
    }

    /// The values of an attribute by point.
    pub fn values(&self, index: &Index, attribute: &str, most: usize, progress: &dyn Progress) -> Result<MapValues> {
        let found = index.categories(attribute, most, progress)?;
        let mut values = vec![MapValues::NONE; self.len()];
        for (sequence, value) in found.values {
            if let Ok(at) = self.sequences.binary_search(&sequence) {
                values[self.points[at] as usize] = value;
            }
        }
        Ok(MapValues { names: found.names, values })
    }
}

/// The values of an attribute on a map.
#[derive(Clone, Debug, PartialEq)]
pub struct MapValues {
    /// The most frequent values with their number of documents.
    pub names: Vec<(String, u64)>,
    /// By point: the position of its value in `names`, [`MapValues::OTHER`] or [`MapValues::NONE`].
    pub values: Vec<u16>,
}

impl MapValues {
    pub const OTHER: u16 = u16::MAX - 1;
    pub const NONE: u16 = u16::MAX;
}

/// The even-odd rule. The page has the same formula, so that it counts the same points.
fn is_inside(x: f64, y: f64, polygon: &[[f64; 2]]) -> bool {
    let mut inside = false;
    let mut last = polygon[polygon.len() - 1];
    for &corner in polygon {
        let [[x0, y0], [x1, y1]] = [last, corner];
        if (y0 > y) != (y1 > y) && x < (x1 - x0) * (y - y0) / (y1 - y0) + x0 {
            inside = !inside;
        }
        last = corner;
    }
    inside
}
