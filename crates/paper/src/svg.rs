//! Plots as SVG: lines, heat maps, points.

use std::fmt::Write;

/// Colours that colour-blind people can tell apart.
const COLOURS: [&str; 8] = ["#1f5fa8", "#c8501e", "#2b8a5b", "#8a4fa3", "#b8860b", "#4a4a4a", "#c03a6b", "#3aa0b5"];
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

pub struct Series {
    /// In the legend.
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Drawn with a thicker line.
    pub strong: bool,
}

/// The scale of the horizontal axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    Log2,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn frame(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\"><text x=\"{LEFT}\" y=\"16\" class=\"t\">{0}</text>",
        escaped(title)
    )
}

/// Round values that divide a range into about four parts.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low).max(1e-9) / 4.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(power * 10.0);
    let mut at = (low / step).ceil() * step;
    let mut out = Vec::new();
    while at <= high + step * 1e-6 {
        out.push(at);
        at += step;
    }
    out
}

/// A line plot; empty text if there are no points.
pub fn lines(title: &str, below: &str, beside: &str, scale: Scale, series: &[Series]) -> String {
    let all: Vec<(f64, f64)> = series.iter().flat_map(|s| s.points.iter().copied()).collect();
    if all.is_empty() {
        return String::new();
    }
    let along = |x: f64| if scale == Scale::Log2 { x.max(1e-9).log2() } else { x };
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if high - low < 1e-9 { (low - 0.5, high + 0.5) } else { (low, high) }
    };
    let (x0, x1) = range(&mut all.iter().map(|p| along(p.0)));
    let (y0, y1) = range(&mut all.iter().map(|p| p.1));
    let (y0, y1) = (y0 - 0.05 * (y1 - y0), y1 + 0.05 * (y1 - y0));
    let px = |x: f64| LEFT + (along(x) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let py = |y: f64| HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let mut out = frame(title, HEIGHT);
    for tick in ticks(y0, y1) {
        let y = py(tick);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"g\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"n e\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            trimmed(tick)
        );
    }
    let mut positions: Vec<f64> = if scale == Scale::Log2 { all.iter().map(|p| p.0).collect() } else { ticks(x0, x1) };
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    for tick in positions.iter().take(12) {
        let x = px(*tick);
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" class=\"n m\">{}</text>",
            HEIGHT - BOTTOM + 16.0,
            trimmed(*tick)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"n m\">{}</text><text x=\"12\" y=\"{:.1}\" class=\"n m\" transform=\"rotate(-90 12 {:.1})\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escaped(below),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escaped(beside)
    );
    for (i, one) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let width = if one.strong { 3.0 } else { 1.5 };
        let path: Vec<String> = one.points.iter().map(|p| format!("{:.1},{:.1}", px(p.0), py(p.1))).collect();
        let _ = write!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            path.join(" ")
        );
        for p in &one.points {
            let _ = write!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>",
                px(p.0),
                py(p.1),
                escaped(&one.name),
                trimmed(p.1),
                trimmed(p.0)
            );
        }
        let y = TOP + 8.0 + 17.0 * i as f64;
        let x = WIDTH - RIGHT + 10.0;
        let _ = write!(
            out,
            "<line x1=\"{x}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"n\">{}</text>",
            x + 14.0,
            x + 19.0,
            y + 4.0,
            escaped(&one.name)
        );
    }
    out + "</svg>"
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A heat map of counts: the darker, the larger a count's share of its row.
pub fn heat(title: &str, below: &str, beside: &str, rows: &[Vec<usize>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    if columns == 0 {
        return String::new();
    }
    let height = TOP + BOTTOM + (rows.len() as f64 * 9.0).clamp(40.0, 320.0);
    let (w, h) = ((WIDTH - LEFT - 20.0) / columns as f64, (height - TOP - BOTTOM) / rows.len() as f64);
    let mut out = frame(title, height);
    for (i, row) in rows.iter().enumerate() {
        let total: usize = row.iter().sum();
        for (j, &count) in row.iter().enumerate() {
            // 1 for a codeword with an even share of the documents, drawn half dark.
            let share = count as f64 * row.len() as f64 / total.max(1) as f64;
            let _ = write!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#1f5fa8\" fill-opacity=\"{:.2}\"><title>{beside} {i}, {below} {j}: {count}</title></rect>",
                LEFT + j as f64 * w,
                TOP + i as f64 * h,
                (w - 0.6).max(0.4),
                (h - 0.6).max(0.4),
                (share / 2.0).min(1.0)
            );
        }
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"n m\">{}</text><text x=\"12\" y=\"{:.1}\" class=\"n m\" transform=\"rotate(-90 12 {:.1})\">{}</text></svg>",
        LEFT + (WIDTH - LEFT - 20.0) / 2.0,
        height - 12.0,
        escaped(below),
        height / 2.0,
        height / 2.0,
        escaped(beside)
    );
    out
}

/// A scatter plot, coloured by class.
pub fn points(title: &str, all: &[(f32, f32, u32)]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let range = |of: &dyn Fn(&(f32, f32, u32)) -> f32| {
        let (low, high) = all.iter().fold((f32::MAX, f32::MIN), |(l, h), p| (l.min(of(p)), h.max(of(p))));
        (f64::from(low), f64::from((high - low).max(1e-6)))
    };
    let (x, y) = (range(&|p| p.0), range(&|p| p.1));
    let mut out = frame(title, HEIGHT);
    for p in all {
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\" fill=\"hsl({} 55% {}%)\" fill-opacity=\"0.7\"><title>class {}</title></circle>",
            20.0 + (f64::from(p.0) - x.0) / x.1 * (WIDTH - 40.0),
            HEIGHT - 14.0 - (f64::from(p.1) - y.0) / y.1 * (HEIGHT - TOP - 24.0),
            // The golden angle gives neighbouring classes different hues.
            (u64::from(p.2) * 137) % 360,
            38 + (p.2 % 3) * 9,
            p.2
        );
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_escape_text_and_draw_every_point_without_nan() {
        let series = [
            Series { name: "a<b".into(), points: vec![(16.0, 80.0), (32.0, 82.0)], strong: true },
            Series { name: "c".into(), points: vec![(16.0, 70.0)], strong: false },
        ];
        for scale in [Scale::Log2, Scale::Linear] {
            let plot = lines("P & Q", "bits", "P@100", scale, &series);
            assert_eq!(plot.matches("<circle").count(), 3);
            assert!(plot.contains("a&lt;b") && plot.contains("P &amp; Q") && plot.ends_with("</svg>"));
            assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
        let plot = heat("use", "codeword", "codebook", &[vec![1, 2, 3], vec![0, 0, 0]]);
        assert_eq!(plot.matches("<rect").count(), 6);
        assert!(!plot.contains("NaN"));
        assert!(!points("map", &[(1.0, 1.0, 0), (1.0, 1.0, 3)]).contains("NaN"));
        assert!(lines("", "", "", Scale::Linear, &[]).is_empty());
    }

    #[test]
    fn ticks_are_round_and_inside_the_range() {
        assert_eq!(ticks(70.0, 90.0), [70.0, 75.0, 80.0, 85.0, 90.0]);
        assert_eq!(ticks(0.0, 1.0).len(), 3);
    }
}
