//! The figure of a report.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::report::{Kill, Killed, LossReport};

type Area<Backend> = DrawingArea<Backend, Shift>;
type Chart<'a, Backend> = ChartContext<'a, Backend, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const SIZE: (u32, u32) = (900, 760);
/// The colours of kills.
const KINDS: [(Killed, RGBColor); 3] = [
    (Killed::Machine, RGBColor(31, 119, 180)),
    (Killed::Manager, RGBColor(214, 39, 40)),
    (Killed::Program, RGBColor(44, 160, 44)),
];

/// Draws the throughput around the signal, of the kill with the median of the times without service, and the distribution of
/// these times. Returns the SVG.
///
/// # Errors
/// If the figure cannot be drawn.
pub fn draw(report: &LossReport) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (throughput, distribution) = root.split_vertically(SIZE.1 / 2);
        draw_throughput(report, &throughput)?;
        draw_distribution(report, &distribution)?;
        root.present()?;
    }
    Ok(svg)
}

fn chart<'a, B: DrawingBackend<ErrorType: 'static> + 'a>(
    area: &'a Area<B>,
    title: &str,
    (x, y): ([f64; 2], [f64; 2]),
    [x_text, y_text]: [&str; 2],
) -> Result<Chart<'a, B>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x[0]..x[1], y[0]..y[1])?;
    let style = ("sans-serif", 13);
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.15))
        .label_style(style)
        .axis_desc_style(style)
        .x_desc(x_text)
        .y_desc(y_text)
        .draw()?;
    Ok(chart)
}

fn line<B: DrawingBackend<ErrorType: 'static>>(
    chart: &mut Chart<'_, B>,
    points: impl Iterator<Item = (f64, f64)>,
    (name, colour): (&str, RGBColor),
) -> Result<()> {
    let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    drawn
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    Ok(())
}

fn legend<'a, B: DrawingBackend<ErrorType: 'static> + 'a>(chart: &mut Chart<'a, B>) -> Result<()> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// Returns the middle kill of some that are sorted.
fn median<'a>(kills: &[&'a Kill]) -> Option<&'a Kill> {
    kills.get(kills.len().saturating_sub(1) / 2).copied()
}

fn draw_throughput<B: DrawingBackend<ErrorType: 'static>>(
    report: &LossReport,
    area: &Area<B>,
) -> Result<()> {
    let typical = KINDS.map(|(killed, _)| median(&report.sorted(killed)));
    let all = || typical.iter().flatten().flat_map(|kill| &kill.per_s);
    let most = all().map(|(_, rate)| rate / 1e3).fold(1.0, f64::max);
    let to = all().map(|(ms, _)| *ms as f64).fold(1.0, f64::max);
    let from = all().map(|(ms, _)| *ms as f64).fold(0.0, f64::min);
    let title = "Commits of the machines that are left, around the signal at 0 (median)";
    let texts = ["milliseconds from the signal", "thousand commits a second"];
    let mut chart = chart(area, title, ([from, to], [0.0, most * 1.05]), texts)?;
    for ((killed, colour), kill) in KINDS.iter().zip(typical) {
        let Some(kill) = kill else { continue };
        let points = kill.per_s.iter();
        let points = points.map(|(ms, rate)| (*ms as f64, rate / 1e3));
        let ms = kill.without_service_ms;
        let (who, done) = (killed.name(), report.done());
        let name = format!("{who} is {done}: {ms:.0} ms without service");
        line(&mut chart, points, (&name, *colour))?;
    }
    legend(&mut chart)
}

fn draw_distribution<B: DrawingBackend<ErrorType: 'static>>(
    report: &LossReport,
    area: &Area<B>,
) -> Result<()> {
    let times = report.kills.iter().map(|kill| kill.without_service_ms);
    let most = times.fold(200.0, f64::max);
    let title = "Time without service, of all signals";
    let texts = ["milliseconds without service", "% of signals, at most"];
    let mut chart = chart(area, title, ([0.0, most * 1.05], [0.0, 100.0]), texts)?;
    for (killed, colour) in KINDS {
        let kills = report.sorted(killed);
        if kills.is_empty() {
            continue;
        }
        let share = |index: usize| index as f64 * 100.0 / kills.len() as f64;
        let steps = kills.iter().enumerate().flat_map(|(index, kill)| {
            let ms = kill.without_service_ms;
            [(ms, share(index)), (ms, share(index + 1))]
        });
        let name = format!("{} is {} ({})", killed.name(), report.done(), kills.len());
        line(&mut chart, steps, (&name, colour))?;
    }
    // FaRM'15 on 90 machines, with leases of 10 ms (its §6.4).
    for (name, ms) in [("FaRM'15: median", 50.0), ("FaRM'15: all under", 200.0)] {
        let points = [(ms, 0.0), (ms, 100.0)].into_iter();
        let colour = RGBColor(120, 120, 120);
        line(&mut chart, points, (&format!("{name} {ms:.0} ms"), colour))?;
    }
    legend(&mut chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_the_curves_of_both_kinds() {
        let kill = |killed: Killed, ms: f64| Kill {
            machine: 1,
            killed,
            without_service_ms: ms,
            without_commit_ms: ms,
            before_per_s: 1000.0,
            after_per_s: 1000.0,
            per_s: vec![(-1, 1000.0), (0, 0.0), (1, 1000.0)],
            returned: None,
        };
        let mut report = LossReport {
            machines: 3,
            copies: 2,
            in_flight: 8,
            stopped_lease_ms: None,
            after_s: 1.0,
            without_service: Vec::new(),
            kills: vec![
                kill(Killed::Manager, 70.0),
                kill(Killed::Machine, 30.0),
                kill(Killed::Machine, 40.0),
            ],
        };
        let svg = draw(&report).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("the manager is killed: 70 ms without service"));
        assert!(svg.contains("a machine is killed: 30 ms without service"));
        report.kills.truncate(1);
        let svg = draw(&report).unwrap();
        assert!(!svg.contains("a machine is killed"));
    }
}
