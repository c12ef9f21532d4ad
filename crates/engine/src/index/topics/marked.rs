//! The documents of an index that have a topic as an attribute, and the centres that follow from them.

use super::super::Walk;
use super::MAX_TOPICS;
use crate::clusters::kmeans::Clusters;
use crate::clusters::points::{Centres, Nearest, Points};
use crate::corpus::Value;
use crate::model::Model;
use crate::{Error, Progress, Result};

/// Documents between two looks at whether to stop.
const CHUNK: usize = 4096;

/// The documents of an index whose topics are in an attribute.
pub(crate) struct Marked<'a> {
    /// Number of topics.
    pub count: usize,
    /// The topic of every document, if it has one, and its insertion sequence.
    pub own: Vec<Option<u16>>,
    pub sequences: Vec<u64>,
    points: Points<'a>,
}

impl<'a> Marked<'a> {
    /// Refuses an attribute that no document has, or that has no numbers of topics.
    pub fn read(walk: &Walk, model: &'a Model, attribute: &str, progress: &dyn Progress) -> Result<Marked<'a>> {
        let (own, sequences) = read(walk, attribute, progress)?;
        let Some(count) = own.iter().flatten().max().map(|&topic| usize::from(topic) + 1) else {
            return Err(Error::config(format!(
                "no document has a topic as attribute \"{attribute}\"; write topics first (mark)"
            )));
        };
        Ok(Marked { count, own, sequences, points: Points::new(model.codebooks(), &walk.codes()?) })
    }

    /// The centres of the topics, with the documents that have one in it, and the others in the nearest.
    pub fn clusters(&self) -> Clusters {
        let centres = centres(&self.points, &self.own, self.count);
        // The distances of the documents of a topic say who is far from it.
        let nearest = self.points.nearest(&centres);
        let within = |(near, own): (&Nearest, &Option<u16>)| match own {
            Some(topic) => Nearest { centre: *topic, ..*near },
            None => *near,
        };
        let nearest = nearest.iter().zip(&self.own).map(within).collect();
        Clusters { centres, nearest }
    }
}

/// The topic of every document, if it has one, and its insertion sequence.
fn read(walk: &Walk, attribute: &str, progress: &dyn Progress) -> Result<(Vec<Option<u16>>, Vec<u64>)> {
    progress.stage("reading topics", Some(walk.len() as u64));
    let (mut topics, mut sequences) = (Vec::with_capacity(walk.len()), Vec::with_capacity(walk.len()));
    for i in 0..walk.len() {
        if i % CHUNK == 0 && progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let record = walk.get(i)?;
        let value = record.attributes.iter().find(|(name, _)| name == attribute).map(|(_, value)| value);
        topics.push(match value {
            None => None,
            Some(Value::Int(topic)) if (0..MAX_TOPICS as i64).contains(topic) => Some(*topic as u16),
            Some(other) => {
                let shown = serde_json::to_string(other).unwrap_or_default();
                return Err(Error::config(format!(
                    "document {} has {shown} as attribute \"{attribute}\", which is not the number of a topic; name the \
                     attribute that topics were written to (mark)",
                    record.id
                )));
            }
        });
        sequences.push(record.sequence);
        progress.advance(1);
    }
    Ok((topics, sequences))
}

/// The means of the documents of each topic. A topic without documents is far from everything.
fn centres(points: &Points, own: &[Option<u16>], count: usize) -> Centres {
    let with_topic: Vec<usize> = (0..own.len()).filter(|&i| own[i].is_some()).collect();
    let members = points.select(&with_topic);
    let near = |&i: &usize| Nearest { centre: own[i].expect("it has a topic"), distance: 0.0, second: 0.0 };
    let nearest: Vec<Nearest> = with_topic.iter().map(near).collect();
    let width = points.shape().width();
    let far = Centres { width, values: vec![f32::MAX.sqrt() / width as f32; count * width] };
    members.means(&members.histograms(&nearest, count), &far)
}
