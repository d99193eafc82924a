//! What was measured, as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

/// The name of the unit's row.
pub const UNIT: &str = "U: one 432-byte record in one LMDB transaction";
/// The name of the flush probe's row.
pub const FLUSH: &str = "flush probe: fdatasync after overwriting 4 KiB";

/// One operation and all its times.
pub struct Row {
    pub name: String,
    /// What the design asks for, in words.
    pub asked: &'static str,
    pub times: Vec<Duration>,
}

impl Row {
    fn at(&self, share: f64) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(place).copied().unwrap_or_default()
    }

    pub fn median(&self) -> Duration {
        self.at(0.5)
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Operations that were interleaved with one another.
pub struct Section {
    pub title: &'static str,
    pub rows: Vec<Row>,
}

impl Section {
    fn median_of(&self, name: &str) -> f64 {
        self.rows.iter().find(|row| row.name == name).map_or(f64::NAN, |row| micros(row.median()))
    }

    fn unit(&self) -> f64 {
        self.median_of(UNIT)
    }
}

/// All sections of a run.
pub struct Report {
    pub sections: Vec<Section>,
}

impl Report {
    fn median_of(&self, name: &str) -> f64 {
        let medians = self.sections.iter().map(|section| section.median_of(name));
        medians.into_iter().find(|median| !median.is_nan()).unwrap_or(f64::NAN)
    }

    /// Ratios between rows that the design names.
    fn ratios(&self) -> Vec<(String, f64, &'static str)> {
        let mut ratios = Vec::new();
        let mut add = |name: &str, over: f64, under: f64, asked| {
            if over.is_finite() && under.is_finite() {
                ratios.push((name.to_owned(), over / under, asked));
            }
        };
        let one = self.median_of("group commit, 1 thread, per register");
        for (threads, asked) in [(8, ">= 3.5"), (64, ">= 15")] {
            let many = self.median_of(&format!("group commit, {threads} threads, per register"));
            add(&format!("throughput of {threads} threads against one"), one, many, asked);
        }
        let threads = self.sections.iter().find(|section| section.title == "many threads");
        let unit = threads.map_or(f64::NAN, Section::unit);
        add("throughput of one thread against U", unit, one, ">= 0.9");
        for history in ["100k", "1M"] {
            for what in ["register", "fence 64 x 8"] {
                let old = self.median_of(&format!("{what}, history {history}"));
                let new = self.median_of(&format!("{what}, history 1k"));
                add(&format!("{what}: history {history} against 1k"), old, new, "<= 1.10");
            }
        }
        ratios
    }

    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for section in &self.sections {
            let unit = section.unit();
            let _ = write!(
                text,
                "\n**{}**\n\n| operation | runs | median, us | p99, us | median, U | asked |\n\
                 |---|---:|---:|---:|---:|---|\n",
                section.title,
            );
            for row in &section.rows {
                let (median, p99) = (micros(row.median()), micros(row.at(0.99)));
                let _ = writeln!(
                    text,
                    "| {} | {} | {median:.1} | {p99:.1} | {:.2} | {} |",
                    row.name,
                    row.times.len(),
                    median / unit,
                    row.asked,
                );
            }
        }
        text.push_str("\n| ratio | measured | asked |\n|---|---:|---|\n");
        for (name, ratio, asked) in self.ratios() {
            let _ = writeln!(text, "| {name} | {ratio:.2} | {asked} |");
        }
        text
    }

    /// The same as JSON. Names hold no character that JSON escapes.
    pub fn json(&self) -> String {
        let sections: Vec<String> = self.sections.iter().map(section_json).collect();
        let ratios: Vec<String> = self
            .ratios()
            .iter()
            .map(|(name, ratio, _)| format!("{{\"name\": \"{name}\", \"ratio\": {ratio:.3}}}"))
            .collect();
        format!(
            "{{\"sections\": [\n  {}],\n \"ratios\": [\n  {}]}}\n",
            sections.join(",\n  "),
            ratios.join(",\n  "),
        )
    }
}

fn section_json(section: &Section) -> String {
    let unit = section.unit();
    let rows: Vec<String> = section
        .rows
        .iter()
        .map(|row| {
            format!(
                "{{\"name\": \"{}\", \"runs\": {}, \"median_us\": {:.2}, \"p99_us\": {:.2}, \
                 \"median_u\": {:.3}}}",
                row.name,
                row.times.len(),
                micros(row.median()),
                micros(row.at(0.99)),
                micros(row.median()) / unit,
            )
        })
        .collect();
    format!(
        "{{\"title\": \"{}\", \"unit_us\": {unit:.2}, \"flush_us\": {:.2}, \"rows\": [\n   {}]}}",
        section.title,
        section.median_of(FLUSH),
        rows.join(",\n   "),
    )
}
