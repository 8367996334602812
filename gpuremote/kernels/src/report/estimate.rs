//! Medians with the uncertainty of few samples.

use std::fmt;

use crate::random::Random;

/// The method in words, for reports.
pub const METHOD: &str = "\
Intervals in parentheses are 95% percentile bootstrap intervals of medians, or of ratios and differences of medians
(2,000 resamples of each series, seed 1; none for fewer than 3 samples).
With few runs they are close to the range of all runs, and they don't include what differs between sessions on a machine.
";

const RESAMPLES: usize = 2000;
const SEED: u64 = 1;
/// Fewer samples have no interval.
const LEAST_SAMPLES: usize = 3;

/// A value computed from medians, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The interval's ends; `None` if there are too few samples.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// Returns `statistic` of the medians of `series`, none of which may be empty, with its bootstrap interval.
    /// The interval is the 2.5% to 97.5% range of the statistic of resampled series (Efron, 1979).
    pub fn of<const N: usize>(series: [&[f64]; N], statistic: impl Fn([f64; N]) -> f64) -> Self {
        let value = statistic(series.map(|samples| median(&mut samples.to_vec())));
        if series.iter().any(|samples| samples.len() < LEAST_SAMPLES) {
            return Self { value, interval: None };
        }
        let mut random = Random::new(SEED);
        let mut scratch = Vec::new();
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                statistic(series.map(|samples| {
                    scratch.clear();
                    scratch.extend((0..samples.len()).map(|_| samples[random.below(samples.len() as u32) as usize]));
                    median(&mut scratch)
                }))
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let tail = RESAMPLES / 40;
        Self { value, interval: Some((resampled[tail], resampled[RESAMPLES - 1 - tail])) }
    }

    /// Returns the estimate divided by `divisor`, whose interval is widened to the range from `least` to `greatest` divisor.
    /// All divisors must be positive.
    pub fn divided(self, divisor: f64, (least, greatest): (f64, f64)) -> Self {
        // A negative end moves away from zero with the least divisor, a positive one with the greatest.
        let low = |end: f64| end / if end < 0.0 { least } else { greatest };
        let high = |end: f64| end / if end < 0.0 { greatest } else { least };
        Self { value: self.value / divisor, interval: self.interval.map(|(start, end)| (low(start), high(end))) }
    }

    /// Returns the estimate times a positive `factor`.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, interval: self.interval.map(|(low, high)| (low * factor, high * factor)) }
    }

    /// Judges a target of at most `limit`.
    pub fn at_most(self, limit: f64) -> Verdict {
        match self.interval {
            None => Verdict::NoSpread,
            Some((_, high)) if high <= limit => Verdict::Met,
            Some((low, _)) if low > limit => Verdict::Missed,
            Some(_) => Verdict::Unclear,
        }
    }

    /// Judges a target of at least `limit`.
    pub fn at_least(self, limit: f64) -> Verdict {
        match self.interval {
            None => Verdict::NoSpread,
            Some((low, _)) if low >= limit => Verdict::Met,
            Some((_, high)) if high < limit => Verdict::Missed,
            Some(_) => Verdict::Unclear,
        }
    }
}

impl fmt::Display for Estimate {
    /// Writes the value with three digits, and the interval in parentheses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Digits(self.value))?;
        match self.interval {
            Some((low, high)) => write!(f, " ({}..{})", Digits(low), Digits(high)),
            None => Ok(()),
        }
    }
}

/// A number with about three digits: two decimals below 10, one below 100, none above.
#[derive(Clone, Copy, Debug)]
pub struct Digits(pub f64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.0.abs() {
            magnitude if magnitude < 9.995 => 2,
            magnitude if magnitude < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{:.decimals$}", self.0)
    }
}

/// Whether a target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval meets the target.
    Met,
    /// No part of the interval meets the target.
    Missed,
    /// The target is within the interval.
    Unclear,
    /// There is no interval.
    NoSpread,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Unclear => "unclear",
            Self::NoSpread => "no spread",
        })
    }
}

/// Returns the middle value or the mean of the two middle values of `samples`, which must not be empty and are reordered.
fn median(samples: &mut [f64]) -> f64 {
    let even = samples.len() % 2 == 0;
    let middle = samples.len() / 2;
    let (below, &mut upper, _) = samples.select_nth_unstable_by(middle, f64::total_cmp);
    match below.iter().copied().max_by(f64::total_cmp) {
        Some(lower) if even => (lower + upper) / 2.0,
        _ => upper,
    }
}

/// Returns the value that 99% of `samples`, which must not be empty, don't exceed.
pub fn percentile_99(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(samples.len() * 99).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_values() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn equal_samples_have_an_interval_of_no_width() {
        let ratio = Estimate::of([&[3.0; 5], &[2.0; 5]], |[way, local]| way / local);
        assert_eq!(ratio, Estimate { value: 1.5, interval: Some((1.5, 1.5)) });
    }

    #[test]
    fn an_interval_holds_the_value_and_is_the_same_each_time() {
        let way = [1.1, 1.2, 1.05, 1.3, 1.15];
        let local = [1.0, 1.02, 0.98, 1.01, 0.99];
        let ratio = || Estimate::of([&way, &local], |[way, local]| way / local);
        let (low, high) = ratio().interval.expect("five samples have an interval");
        assert!(1.05 / 1.02 <= low && low < ratio().value && ratio().value < high && high <= 1.3 / 0.98, "{:?}", ratio());
        assert_eq!(ratio(), ratio());
    }

    #[test]
    fn a_target_within_the_interval_is_unclear() {
        let estimate = |low, high| Estimate { value: (low + high) / 2.0, interval: Some((low, high)) };
        assert_eq!(estimate(1.0, 1.05).at_most(1.05), Verdict::Met);
        assert_eq!(estimate(1.0, 1.06).at_most(1.05), Verdict::Unclear);
        assert_eq!(estimate(1.06, 1.1).at_most(1.05), Verdict::Missed);
        assert_eq!(estimate(0.8, 0.89).at_least(0.9), Verdict::Missed);
        assert_eq!(estimate(0.9, 1.0).at_least(0.9), Verdict::Met);
        assert_eq!(Estimate { value: 9.0, interval: None }.at_most(1.05), Verdict::NoSpread);
    }

    #[test]
    fn several_divisors_widen_the_interval() {
        let estimate = Estimate { value: 2.0, interval: Some((-1.0, 4.0)) };
        assert_eq!(estimate.divided(2.0, (1.0, 4.0)), Estimate { value: 1.0, interval: Some((-1.0, 4.0)) });
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let text: Vec<String> = [0.123, 9.999, 99.96, 1234.5].map(|value| Digits(value).to_string()).to_vec();
        assert_eq!(text, ["0.12", "10.0", "100", "1234"]);
    }

    #[test]
    fn one_in_a_hundred_samples_exceeds_the_99th_percentile() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile_99(&samples), 198.0);
        assert_eq!(percentile_99(&[5.0]), 5.0);
    }
}
