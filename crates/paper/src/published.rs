//! The published figures: P@100 in percent at 16, 32, 64 and 128 bits.

use engine::encoder::Pooling;
use methods::Input;

type Row = [f64; 4];

/// Columns of the published tables.
const CORPORA: [&str; 3] = ["nyt", "agnews", "dbpedia"];

/// With terms, or with bert-base-uncased and CLS pooling.
#[rustfmt::skip]
const MAIN: [(&str, Input, [Row; 3]); 16] = [
    ("vdsh", Input::Tfidf, [[68.77, 68.77, 75.01, 78.49], [67.32, 67.42, 72.70, 73.86], [67.79, 72.64, 78.84, 84.91]]),
    ("nash", Input::Tfidf, [[74.87, 75.52, 75.08, 73.01], [65.74, 69.34, 72.72, 74.33], [78.02, 79.84, 79.79, 76.76]]),
    ("wish", Input::Tfidf, [[70.15, 70.03, 64.48, 68.94], [74.53, 74.79, 75.05, 72.70], [82.82, 82.76, 82.10, 78.22]]),
    ("bmsh", Input::Tfidf, [[74.02, 76.38, 76.88, 77.63], [74.09, 76.03, 76.09, 73.56], [83.17, 86.24, 87.05, 83.86]]),
    ("corrsh", Input::Tfidf, [[75.43, 77.61, 77.24, 78.39], [76.20, 76.45, 76.61, 77.67], [82.01, 81.78, 80.94, 85.77]]),
    ("ammi", Input::Tfidf, [[71.06, 76.48, 77.37, 78.03], [76.47, 76.61, 77.32, 78.23], [84.51, 89.53, 90.78, 91.03]]),
    ("vdsh", Input::Encoder, [[53.38, 58.18, 62.44, 64.64], [62.97, 66.35, 69.57, 70.27], [69.59, 75.21, 79.54, 80.62]]),
    ("nash", Input::Encoder, [[55.87, 58.25, 60.98, 64.27], [66.32, 68.44, 70.40, 72.07], [65.87, 74.54, 77.96, 81.43]]),
    ("wish", Input::Encoder, [[58.83, 64.75, 65.47, 70.34], [65.35, 66.19, 69.39, 72.03], [65.65, 72.91, 76.66, 82.29]]),
    ("bmsh", Input::Encoder, [[59.35, 63.26, 65.87, 69.71], [66.77, 69.61, 71.99, 73.16], [66.42, 79.13, 82.01, 84.57]]),
    ("corrsh", Input::Encoder, [[62.03, 65.48, 68.38, 72.28], [67.06, 68.51, 70.86, 73.17], [65.28, 74.63, 78.65, 83.61]]),
    ("ammi", Input::Encoder, [[60.47, 65.10, 69.67, 74.47], [65.50, 68.26, 71.85, 74.36], [80.25, 82.67, 89.26, 86.74]]),
    ("dhim", Input::Encoder, [[79.69, 80.55, 79.77, 79.09], [78.23, 79.17, 78.88, 79.86], [94.26, 94.80, 93.02, 88.21]]),
    ("aepq", Input::Encoder, [[67.98, 68.35, 70.38, 71.48], [68.81, 70.49, 72.82, 73.84], [80.24, 84.54, 86.78, 89.70]]),
    ("csh", Input::Encoder, [[79.63, 81.05, 81.08, 81.28], [79.14, 80.25, 81.14, 81.78], [95.19, 95.84, 95.79, 96.01]]),
    ("micpq", Input::Encoder, [[83.15, 84.02, 84.24, 85.08], [80.36, 81.84, 82.93, 83.29], [96.51, 97.00, 97.03, 97.21]]),
];

/// Mean pooling.
const MEAN: [(&str, [Row; 3]); 2] = [
    ("csh", [[71.89, 71.99, 77.38, 78.26], [81.38, 81.22, 81.83, 81.85], [93.39, 93.98, 94.56, 94.66]]),
    ("micpq", [[79.56, 79.99, 78.49, 80.33], [81.60, 83.00, 83.85, 84.04], [94.47, 95.87, 95.76, 95.71]]),
];

/// The ablations; none is published on DBpedia.
const ABLATION: [(&str, [Row; 2]); 2] = [
    ("cl", [[81.77, 82.28, 82.96, 83.63], [79.68, 80.97, 81.79, 82.23]]),
    ("softmax", [[82.28, 83.46, 83.64, 84.17], [79.60, 81.61, 82.58, 82.69]]),
];

/// Clustering accuracy, mean and best of eight codebooks: by MICPQ's codebooks, then by K-means.
pub const CLUSTERING: [(&str, [f64; 2], [f64; 2]); 3] = [
    ("nyt", [48.74, 57.51], [41.73, 43.74]),
    ("agnews", [58.06, 69.65], [61.10, 67.45]),
    ("dbpedia", [64.12, 80.88], [67.99, 80.49]),
];

/// The published figure of a cell, if there is one.
pub fn precision(method: &str, input: Input, pooling: Pooling, corpus: &str, bits: usize) -> Option<f64> {
    let column = CORPORA.iter().position(|c| *c == corpus)?;
    let position = [16, 32, 64, 128].iter().position(|b| *b == bits)?;
    let row = if input == Input::Encoder && pooling == Pooling::Mean {
        MEAN.iter().find(|(m, _)| *m == method).map(|(_, rows)| rows[column])
    } else if let Some((_, rows)) = ABLATION.iter().find(|(m, _)| *m == method) {
        rows.get(column).copied()
    } else {
        MAIN.iter().find(|(m, i, _)| (*m, *i) == (method, input)).map(|(_, _, rows)| rows[column])
    };
    row.map(|row| row[position])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_published_tables() {
        let of = |method, input, pooling, corpus, bits| precision(method, input, pooling, corpus, bits);
        assert_eq!(of("micpq", Input::Encoder, Pooling::Cls, "agnews", 32), Some(81.84));
        assert_eq!(of("micpq", Input::Encoder, Pooling::Mean, "dbpedia", 128), Some(95.71));
        assert_eq!(of("cl", Input::Encoder, Pooling::Cls, "agnews", 16), Some(79.68));
        assert_eq!(of("cl", Input::Encoder, Pooling::Cls, "dbpedia", 16), None);
        // Terms have no pooling.
        assert_eq!(of("ammi", Input::Tfidf, Pooling::Mean, "dbpedia", 64), Some(90.78));
        assert_eq!(of("vdsh", Input::Encoder, Pooling::Mean, "agnews", 32), None);
        assert_eq!(of("opq", Input::Encoder, Pooling::Cls, "agnews", 32), None);
    }
}
