//! Grouped bars as SVG: ratios to the local driver on a logarithmic axis, on which half and double are equally far from 1.

use std::fmt::{Display, Write};

use super::estimate::{Digits, Estimate};
use super::kernels::TARGET_RATIO;

/// One kernel and problem.
#[derive(Clone, Debug)]
pub struct Group {
    /// Lines below the group.
    pub labels: Vec<String>,
    /// Ratios to local by memory and by TCP.
    pub bars: [Option<Estimate>; 2],
    /// The published ratio.
    pub published: Option<f64>,
}

/// One set of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title above the axes.
    pub title: String,
    /// Groups from left to right.
    pub groups: Vec<Group>,
}

/// Names and colors of the bars; the colors stay apart for color-blind readers (Okabe and Ito, 2008).
const SERIES: [(&str, &str); 2] = [("shared memory", "#0072b2"), ("TCP", "#e69f00")];
/// Values that may have a tick, in each decade.
const TICKS: [f64; 11] = [1.0, 1.5, 1.1, 1.2, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0];

const LEFT_PX: f64 = 74.0;
const RIGHT_PX: f64 = 116.0;
const GROUP_PX: f64 = 112.0;
const BAR_PX: f64 = 32.0;
const HEADER_PX: f64 = 44.0;
const TITLE_PX: f64 = 34.0;
const AXES_PX: f64 = 260.0;
const FOOTER_PX: f64 = 78.0;
/// The least distance of two ticks' labels.
const TICK_PX: f64 = 18.0;

/// Returns panels one below the other as an SVG document.
pub fn draw(panels: &[Panel]) -> String {
    let groups = panels.iter().map(|panel| panel.groups.len()).max().unwrap_or(0).max(4);
    let width = LEFT_PX + groups as f64 * GROUP_PX + RIGHT_PX;
    let height = HEADER_PX + panels.len() as f64 * (TITLE_PX + AXES_PX + FOOTER_PX);
    let mut svg = Svg::new(width, height);
    legend(&mut svg, panels.iter().flat_map(|panel| &panel.groups).any(|group| group.published.is_some()));
    for (index, panel) in panels.iter().enumerate() {
        draw_panel(&mut svg, panel, HEADER_PX + index as f64 * (TITLE_PX + AXES_PX + FOOTER_PX));
    }
    svg.finish()
}

/// A document under construction. Lengths are pixels from the upper left corner.
struct Svg {
    text: String,
}

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    fn new(width: f64, height: f64) -> Self {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        );
        Self { text }
    }

    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, color: &str) {
        let _ = writeln!(self.text, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>");
    }

    /// Draws a line; `style` has further attributes.
    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
        let _ = writeln!(self.text, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
    }

    fn diamond(&mut self, x: f64, y: f64) {
        let _ = writeln!(self.text, "<path d=\"M{x:.1} {y:.1}m0 -5l5 5l-5 5l-5 -5z\" fill=\"white\" stroke=\"black\"/>");
    }

    /// Writes `content` at the baseline `y`; `style` has further attributes.
    fn label(&mut self, (x, y): (f64, f64), anchor: Anchor, style: &str, content: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let content = content.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(self.text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{content}</text>");
    }

    fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn legend(svg: &mut Svg, published: bool) {
    let mut x = LEFT_PX;
    for (name, color) in SERIES {
        svg.rectangle(x, 16.0, 14.0, 14.0, color);
        svg.label((x + 20.0, 28.0), Anchor::Start, "", name);
        x += 44.0 + 8.0 * name.len() as f64;
    }
    svg.line((x + 6.0, 15.0), (x + 6.0, 31.0), INTERVAL);
    svg.label((x + 16.0, 28.0), Anchor::Start, "", "95% bootstrap interval");
    x += 180.0;
    if published {
        svg.diamond(x, 23.0);
        svg.label((x + 11.0, 28.0), Anchor::Start, "", "published study, other hardware");
    }
}

const INTERVAL: &str = "stroke=\"black\" stroke-width=\"1.2\"";
/// White around the digits covers the lines below them.
const VALUE: &str = "font-size=\"11\" stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\"";

/// A logarithmic axis from the bottom up.
struct Axis {
    low: f64,
    high: f64,
    bottom_px: f64,
}

impl Axis {
    /// Returns an axis with room for all values and for labels beyond them; 1 and the target are always on it.
    fn of(groups: &[Group], bottom_px: f64) -> Self {
        let bars = groups.iter().flat_map(|group| group.bars.iter().flatten());
        let ends = bars
            .flat_map(|bar| [bar.value, bar.interval.map_or(bar.value, |(low, _)| low), bar.interval.map_or(bar.value, |(_, high)| high)]);
        let values = ends.chain(groups.iter().filter_map(|group| group.published));
        let (low, high) = values.fold((0.95, 1.15), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let room = (high / low).powf(0.09);
        Self { low: low / room, high: high * room, bottom_px }
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.bottom_px - AXES_PX * part
    }

    /// Returns values for ticks, none too near to another or to the labels at 1 and at the target.
    fn ticks(&self) -> Vec<f64> {
        let mut kept = vec![1.0];
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let mut values: Vec<f64> = decades.flat_map(|decade| TICKS.map(|tick| tick * 10f64.powi(decade))).collect();
        // Round values first, so that they push others out.
        let roundness =
            |value: f64| [1.0, 2.0, 5.0].iter().position(|round| (value / 10f64.powf(value.log10().floor()) / round - 1.0).abs() < 1e-9);
        values.sort_by_key(|value| roundness(*value).unwrap_or(3));
        for value in values {
            let inside = value >= self.low && value <= self.high;
            if inside && kept.iter().all(|other| (self.y(value) - self.y(*other)).abs() >= TICK_PX) {
                kept.push(value);
            }
        }
        kept
    }
}

fn draw_panel(svg: &mut Svg, panel: &Panel, top: f64) {
    let right = LEFT_PX + panel.groups.len() as f64 * GROUP_PX;
    let axis = Axis::of(&panel.groups, top + TITLE_PX + AXES_PX);
    let upper = axis.bottom_px - AXES_PX;
    svg.label((LEFT_PX, top + 18.0), Anchor::Start, "font-size=\"15\" font-weight=\"bold\"", &panel.title);
    for tick in axis.ticks() {
        let y = axis.y(tick);
        svg.line((LEFT_PX, y), (right, y), "stroke=\"#dddddd\"");
        svg.label((LEFT_PX - 8.0, y + 4.0), Anchor::End, "", format!("{} ×", (tick * 1000.0).round() / 1000.0));
    }
    svg.line((LEFT_PX, upper), (LEFT_PX, axis.bottom_px), "stroke=\"black\"");
    let middle = (upper + axis.bottom_px) / 2.0;
    let turned = format!("transform=\"rotate(-90 18 {middle:.1})\"");
    svg.label((18.0, middle), Anchor::Middle, &turned, "work time / local work time (ratio, log)");
    let centers = (0..panel.groups.len()).map(|index| LEFT_PX + (index as f64 + 0.5) * GROUP_PX);
    for (group, center) in panel.groups.iter().zip(centers.clone()) {
        bars(svg, group, &axis, center);
    }
    references(svg, &axis, right);
    for (group, center) in panel.groups.iter().zip(centers) {
        texts(svg, group, &axis, center);
    }
}

/// Draws the lines at 1 and at the target over the bars, with labels that keep apart.
fn references(svg: &mut Svg, axis: &Axis, right: f64) {
    let (one, target) = (axis.y(1.0), axis.y(TARGET_RATIO));
    svg.line((LEFT_PX, one), (right, one), "stroke=\"black\" stroke-width=\"1.2\"");
    svg.line((LEFT_PX, target), (right, target), "stroke=\"#cc0000\" stroke-width=\"1.2\" stroke-dasharray=\"5 3\"");
    let apart = (13.0 - (one - target)).max(0.0) / 2.0;
    svg.label((right + 6.0, one + 4.0 + apart), Anchor::Start, "", "local 1.00 ×");
    svg.label((right + 6.0, target + 4.0 - apart), Anchor::Start, "fill=\"#cc0000\"", format!("target {TARGET_RATIO:.2} ×"));
}

/// Returns the middle of a bar.
fn bar_center(group_center: f64, index: usize) -> f64 {
    group_center + (index as f64 - (SERIES.len() - 1) as f64 / 2.0) * BAR_PX
}

fn bars(svg: &mut Svg, group: &Group, axis: &Axis, center: f64) {
    for (index, (bar, (_, color))) in group.bars.iter().zip(SERIES).enumerate() {
        let Some(bar) = bar else { continue };
        let x = bar_center(center, index);
        let (end, one) = (axis.y(bar.value), axis.y(1.0));
        svg.rectangle(x - BAR_PX / 2.0 + 1.0, end.min(one), BAR_PX - 2.0, (end - one).abs(), color);
        if let Some((low, high)) = bar.interval {
            let (low, high) = (axis.y(low), axis.y(high));
            for y in [low, high] {
                svg.line((x - 4.0, y), (x + 4.0, y), INTERVAL);
            }
            svg.line((x, low), (x, high), INTERVAL);
        }
    }
}

/// Writes what must stay readable over bars and lines.
fn texts(svg: &mut Svg, group: &Group, axis: &Axis, center: f64) {
    if group.bars.iter().all(Option::is_none) {
        svg.label((center, axis.y(1.0) - 10.0), Anchor::Middle, "font-size=\"11\" font-style=\"italic\" fill=\"#444444\"", "no result");
    }
    for (index, bar) in group.bars.iter().enumerate() {
        let Some(bar) = bar else { continue };
        let top = axis.y(bar.interval.map_or(bar.value, |(_, high)| high).max(1.0));
        svg.label((bar_center(center, index), top - 5.0), Anchor::Middle, VALUE, Digits(bar.value));
    }
    if let Some(published) = group.published {
        svg.diamond(center + BAR_PX * SERIES.len() as f64 / 2.0 + 8.0, axis.y(published));
    }
    for (line, text) in group.labels.iter().enumerate() {
        let style = if line == 0 { "font-weight=\"bold\"" } else { "font-size=\"10\" fill=\"#444444\"" };
        svg.label((center, axis.bottom_px + 18.0 + 14.0 * line as f64), Anchor::Middle, style, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(value: f64) -> Group {
        let bar = Estimate { value, interval: Some((value * 0.9, value * 1.1)) };
        Group { labels: vec!["a<b & c".to_string()], bars: [Some(bar), None], published: Some(1.07) }
    }

    #[test]
    fn every_value_is_between_the_axis_ends() {
        for value in [0.2, 1.0, 1.04, 3.0, 250.0] {
            let axis = Axis::of(&[group(value)], 300.0);
            for end in [value * 0.9, value, value * 1.1, 1.0, TARGET_RATIO] {
                let y = axis.y(end);
                assert!((300.0 - AXES_PX..=300.0).contains(&y), "{end} is drawn at {y}");
            }
        }
    }

    #[test]
    fn ticks_keep_apart_and_include_1() {
        for value in [0.2, 1.0, 3.0, 250.0] {
            let axis = Axis::of(&[group(value)], 300.0);
            let mut ys: Vec<f64> = axis.ticks().into_iter().map(|tick| axis.y(tick)).collect();
            assert!(axis.ticks().contains(&1.0));
            ys.sort_by(f64::total_cmp);
            assert!(ys.windows(2).all(|pair| pair[1] - pair[0] >= TICK_PX), "{ys:?}");
        }
    }

    #[test]
    fn labels_are_escaped_and_missing_bars_left_out() {
        let svg = draw(&[Panel { title: "T".to_string(), groups: vec![group(2.0)] }]);
        assert!(svg.contains("a&lt;b &amp; c"), "{svg}");
        // One bar, the background and two squares of the legend.
        assert_eq!(svg.matches("<rect").count(), 4, "{svg}");
    }
}
