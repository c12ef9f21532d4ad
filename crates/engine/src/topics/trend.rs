//! Trend: how many documents of each topic fall into each period of a date attribute.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::corpus::Value;
use crate::index::{Record, Walk};
use crate::{Error, Progress, Result};

/// Documents that are looked at to find an attribute with dates.
const SAMPLE: usize = 200;
/// Fewer periods than this are divided further: years into months, months into days.
const MIN_PERIODS: usize = 3;
/// Documents read at a time.
const CHUNK: usize = 4096;

/// Documents by topic and period.
pub(super) struct Trend {
    pub attribute: String,
    /// In order: `1987`, `1987-03` or `1987-03-26`.
    pub periods: Vec<String>,
    /// `[topics][periods]`.
    pub counts: Vec<Vec<u64>>,
}

/// The trend of topics over an attribute; over the first attribute that has dates if none is named. `None` if there is none, or
/// only outliers have it.
pub(super) fn trend(
    walk: &Walk,
    classes: &[Option<u16>],
    count: usize,
    named: Option<&str>,
    progress: &dyn Progress,
) -> Result<Option<Trend>> {
    let Some(attribute) = named.map(str::to_owned).map_or_else(|| dated(walk), |name| Ok(Some(name)))? else {
        return Ok(None);
    };
    progress.stage("reading dates", Some(walk.len() as u64));
    // Documents by day and topic. Those without a topic count only as a proof that there are dates.
    let mut dated = false;
    let mut days: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for start in (0..walk.len()).step_by(CHUNK) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let places = start..(start + CHUNK).min(walk.len());
        let day = |place: usize| Ok(date(&walk.get(place)?, &attribute));
        let dates = places.clone().into_par_iter().map(day).collect::<Result<Vec<_>>>()?;
        for (place, date) in places.clone().zip(dates) {
            dated |= date.is_some();
            if let (Some(date), Some(class)) = (date, classes[place]) {
                days.entry(date).or_insert_with(|| vec![0; count])[usize::from(class)] += 1;
            }
        }
        progress.advance(places.len() as u64);
    }
    if days.is_empty() && named.is_none() {
        return Ok(None);
    }
    if !dated {
        return Err(Error::config(format!(
            "no document has a date in attribute \"{attribute}\"; a date is a text that begins with YYYY-MM-DD, YYYY-MM or \
             YYYY, or a year as a number"
        )));
    }
    let mut periods = BTreeMap::new();
    for length in ["YYYY", "YYYY-MM", "YYYY-MM-DD"].map(str::len) {
        periods = BTreeMap::new();
        for (day, counts) in &days {
            let sums = periods.entry(day[..length.min(day.len())].to_owned()).or_insert_with(|| vec![0; count]);
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        if periods.len() >= MIN_PERIODS {
            break;
        }
    }
    let counts = (0..count).map(|topic| periods.values().map(|counts| counts[topic]).collect()).collect();
    Ok(Some(Trend { attribute, periods: periods.into_keys().collect(), counts }))
}

/// The first attribute, by name, whose values are dates in all sampled documents that have it.
fn dated(walk: &Walk) -> Result<Option<String>> {
    let count = walk.len().min(SAMPLE);
    let mut names: BTreeMap<String, bool> = BTreeMap::new();
    for i in 0..count {
        let record = walk.get(i * walk.len() / count)?;
        for (name, value) in &record.attributes {
            // A number of four digits is a year only by its name.
            let is_date = match value {
                Value::Int(_) => name.eq_ignore_ascii_case("year") && date(&record, name).is_some(),
                _ => date(&record, name).is_some_and(|date| date.len() > "YYYY".len()),
            };
            *names.entry(name.clone()).or_insert(true) &= is_date;
        }
    }
    Ok(names.into_iter().find(|(_, is_date)| *is_date).map(|(name, _)| name))
}

/// `YYYY`, `YYYY-MM` or `YYYY-MM-DD`, as far as the attribute says it.
fn date(record: &Record, attribute: &str) -> Option<String> {
    let (_, value) = record.attributes.iter().find(|(name, _)| name == attribute)?;
    let text = match value {
        Value::Int(year @ 1000..=9999) => year.to_string(),
        Value::Text(text) => text.clone(),
        _ => return None,
    };
    let digits =
        |from: usize, to: usize| text.as_bytes().get(from..to).is_some_and(|b| b.iter().all(u8::is_ascii_digit));
    let dash = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    let length = match (digits(0, 4), dash(4) && digits(5, 7), dash(7) && digits(8, 10)) {
        (true, true, true) => 10,
        (true, true, false) => 7,
        (true, false, _) if text.len() == 4 => 4,
        _ => return None,
    };
    Some(text[..length].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::DocId;

    #[test]
    fn dates_are_read_as_far_as_they_are_written() {
        let date = |value: Value| {
            let attributes = vec![("when".to_owned(), value)];
            let record =
                Record { id: DocId::Int(1), code: vec![], sequence: 0, text: None, labels: vec![], attributes };
            super::date(&record, "when")
        };
        let text = |s: &str| date(Value::Text(s.into()));
        assert_eq!(text("1987-03-26T15:01:01Z").as_deref(), Some("1987-03-26"));
        assert_eq!(text("1987-03").as_deref(), Some("1987-03"));
        assert_eq!(text("1987").as_deref(), Some("1987"));
        assert_eq!(date(Value::Int(1987)).as_deref(), Some("1987"));
        for none in ["", "19870326", "26-FEB-1987", "198é-03-01", "1987-3-1", "1987 words"] {
            assert_eq!(text(none), None, "{none}");
        }
        assert_eq!((date(Value::Int(42)), date(Value::Bool(true))), (None, None));
    }
}
