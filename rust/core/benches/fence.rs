//! How long registrations, fences and aborts take, in units of one durable LMDB transaction.
//!
//! `cargo bench -p effectstore --bench fence -- [--short] [--dir DIR] [--json FILE] [--only TEXT]`
//!
//! The operations of a section are interleaved in random order, so that a slow moment of the disk
//! meets all of them alike; each section has a U of its own. `--memory` measures the store without a disk, which is for profiling.
#![allow(missing_docs, clippy::pedantic)]

mod support {
    pub mod cases;
    pub mod chance;
    pub mod control;
    pub mod report;
    pub mod work;

    /// What goes wrong in a benchmark ends it.
    pub type Answer<T> = Result<T, Box<dyn std::error::Error>>;
}

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::Answer;
use support::cases::{Abort, By, Case, Fence, Group, Register};
use support::chance::Chance;
use support::control::{Flush, Unit};
use support::report::{FLUSH, Report, Row, Section, UNIT};

struct Arguments {
    short: bool,
    memory: bool,
    dir: PathBuf,
    json: Option<PathBuf>,
    only: Vec<String>,
    rounds: u64,
}

fn arguments() -> Answer<Arguments> {
    let from_env = std::env::var_os("EFFECTSTORE_BENCH_DIR").map(PathBuf::from);
    let built = std::env::current_exe()?;
    let beside = built.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut found = Arguments {
        short: false,
        memory: false,
        dir: from_env.unwrap_or(beside),
        json: None,
        only: Vec::new(),
        rounds: 200,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--short" => found.short = true,
            "--memory" => found.memory = true,
            "--dir" => found.dir = value()?.into(),
            "--json" => found.json = Some(value()?.into()),
            "--only" => found.only.push(value()?),
            "--rounds" => found.rounds = value()?.parse()?,
            "--bench" => {} // What cargo adds.
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    Ok(found)
}

/// A case in the plan: it is run in every so many rounds.
struct Planned {
    row: Row,
    every: u64,
    case: Box<dyn Case>,
}

/// Operations that are interleaved with one another, and with a U of their own: a decision over ten
/// thousand effects empties the processor's caches for whatever is measured next, so it is measured
/// among its like.
struct Plan<'a> {
    arguments: &'a Arguments,
    root: PathBuf,
    title: &'static str,
    all: Vec<Planned>,
}

impl<'a> Plan<'a> {
    fn new(arguments: &'a Arguments, root: &Path, title: &'static str) -> Answer<Self> {
        let root = root.join(title.replace(' ', "-"));
        std::fs::create_dir_all(&root)?;
        let mut plan = Plan { arguments, root, title, all: Vec::new() };
        plan.add(UNIT, "", 1, |dir| Unit::open(dir.unwrap_or(Path::new("."))))?;
        let probe = plan.root.join("probe");
        plan.add(FLUSH, "", 1, |_| Flush::open(&probe))?;
        Ok(plan)
    }

    fn is_empty(&self) -> bool {
        self.all.len() == 2
    }

    /// Adds a case, if it is asked for, with the directory that it may use.
    fn add<C: Case + 'static>(
        &mut self,
        name: &str,
        asked: &'static str,
        every: u64,
        make: impl FnOnce(Option<&Path>) -> Answer<C>,
    ) -> Answer<()> {
        let only = &self.arguments.only;
        let control = name == UNIT || name == FLUSH;
        if !control && !only.is_empty() && !only.iter().any(|text| name.contains(text)) {
            return Ok(());
        }
        let dir = self.root.join(self.all.len().to_string());
        let stored = !self.arguments.memory || control;
        let case = Box::new(make(stored.then_some(dir.as_path()))?);
        let row = Row { name: name.to_owned(), asked, times: Vec::new() };
        self.all.push(Planned { row, every: if self.arguments.short { every } else { 1 }, case });
        Ok(())
    }
}

fn small<'a>(arguments: &'a Arguments, root: &Path) -> Answer<Plan<'a>> {
    let mut plan = Plan::new(arguments, root, "one effect at a time")?;
    for degree in [1, 8, 64] {
        let name = format!("register, {degree} dependencies");
        plan.add(&name, "<= 1.20 U", 1, |dir| Register::new(dir, degree, 0))?;
    }
    for degree in [1, 8, 64] {
        let name = format!("fence 100 x {degree}");
        plan.add(&name, "<= 1.15 U", 2, |dir| Fence::new(dir, 100, degree, By::Reconcile))?;
    }
    let long = if arguments.short { ("100k", 100_000) } else { ("1M", 1_000_000) };
    for (name, history) in [("1k", 1_000), long] {
        let register = format!("register, history {name}");
        plan.add(&register, "", 1, |dir| Register::new(dir, 8, history))?;
        let fence = format!("fence 64 x 8, history {name}");
        plan.add(&fence, "", 2, |dir| Fence::aged(dir, 64, 8, history))?;
    }
    Ok(plan)
}

fn large<'a>(arguments: &'a Arguments, root: &Path) -> Answer<Plan<'a>> {
    let mut plan = Plan::new(arguments, root, "large decisions")?;
    for (count, every) in [(100, 2), (1_000, 4), (10_000, 8)] {
        for degree in [1, 8, 64] {
            let asked = asked_of(count, degree);
            if count > 100 {
                let name = format!("fence {count} x {degree}");
                plan.add(&name, asked, every, |dir| Fence::new(dir, count, degree, By::Reconcile))?;
            }
        }
        let name = format!("fence {count} x 64 by its newest effect");
        plan.add(&name, asked_of(count, 64), every, |dir| Fence::new(dir, count, 64, By::Newest))?;
        let name = format!("fence {count} x 8 by the owner");
        plan.add(&name, asked_of(count, 8), every, |dir| Fence::new(dir, count, 8, By::Owner))?;
        let name = format!("abort {count} x 8");
        plan.add(&name, "fence + 0.5 U", every, |dir| Ok(Abort::new(dir, count, 8, false)))?;
        let name = format!("abort {count} x 8 and its plan");
        plan.add(&name, "", every, |dir| Ok(Abort::new(dir, count, 8, true)))?;
    }
    Ok(plan)
}

fn asked_of(count: u64, degree: u64) -> &'static str {
    match (count, degree) {
        (100, _) => "<= 1.15 U",
        (1_000, _) => "<= 1.4 U",
        (_, 64) => "<= 3.0 U",
        _ => "<= 1.7 U",
    }
}

fn threads<'a>(arguments: &'a Arguments, root: &Path) -> Answer<Plan<'a>> {
    let mut plan = Plan::new(arguments, root, "many threads")?;
    for threads in [1, 8, 64] {
        let ending = if threads == 1 { "" } else { "s" };
        let name = format!("group commit, {threads} thread{ending}, per register");
        let lasting = Duration::from_millis(300);
        plan.add(&name, "", 8, |dir| Ok(Group::new(dir, threads, lasting)))?;
    }
    Ok(plan)
}

fn main() -> Answer<()> {
    let arguments = arguments()?;
    let root = arguments.dir.join(format!("effectstore-bench-{}", std::process::id()));
    std::fs::create_dir_all(&root)?;
    let answer = run(&arguments, &root);
    std::fs::remove_dir_all(&root)?;
    answer
}

fn run(arguments: &Arguments, root: &Path) -> Answer<()> {
    let mut sections = Vec::new();
    for make in [small, large, threads] {
        let mut plan = make(arguments, root)?;
        if plan.is_empty() {
            continue;
        }
        interleave(&mut plan, arguments.rounds)?;
        let rows = plan.all.into_iter().map(|planned| planned.row).collect();
        sections.push(Section { title: plan.title, rows });
    }
    let report = Report { sections };
    println!("{}", report.markdown());
    if let Some(file) = &arguments.json {
        std::fs::write(file, report.json())?;
    }
    Ok(())
}

fn interleave(plan: &mut Plan<'_>, rounds: u64) -> Answer<()> {
    let mut chance = Chance::new(7);
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..plan.all.len()).collect();
        chance.shuffle(&mut order);
        for place in order {
            let planned = &mut plan.all[place];
            // Offset, so that the rare ones do not all fall into the same rounds.
            if (round + place as u64).is_multiple_of(planned.every) {
                let took = planned.case.once()?;
                planned.row.times.push(took);
            }
        }
    }
    Ok(())
}
