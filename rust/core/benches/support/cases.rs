//! The operations that are measured. Each prepares itself outside of the measured time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use effectstore::model::{
    EffectId, Escalate, Follows, OnConflict, Receipt, Registration, RollbackId, Target,
};
use effectstore::store::Payloads;

use super::Answer;
use super::control::{Flush, Unit};
use super::work::{Site, WINDOW};

/// Something that can be measured again and again.
pub trait Case {
    /// Prepares, does it once, and answers how long the doing took.
    fn once(&mut self) -> Answer<Duration>;
}

impl Case for Unit {
    fn once(&mut self) -> Answer<Duration> {
        Unit::once(self)
    }
}

impl Case for Flush {
    fn once(&mut self) -> Answer<Duration> {
        Flush::once(self)
    }
}

/// One durable registration that rests on `degree` of the last 256 live effects.
pub struct Register {
    site: Site,
    degree: u64,
    live: VecDeque<Receipt>,
}

impl Register {
    pub fn new(dir: Option<&Path>, degree: u64, history: u64) -> Answer<Self> {
        let mut site = Site::new(dir, 1, degree)?;
        site.age(history)?;
        let receipts = site.register_graph(WINDOW, degree, false)?;
        site.report_done(&receipts)?;
        Ok(Register { site, degree, live: receipts.into() })
    }

    fn on(&mut self) -> Vec<EffectId> {
        let newest = self.live.len() - 1;
        let mut on: Vec<EffectId> = Vec::new();
        while (on.len() as u64) < self.degree {
            let back = usize::try_from(self.site.chance.below(WINDOW)).unwrap_or(0);
            let effect = self.live[newest - back].effect;
            if !on.contains(&effect) {
                on.push(effect);
            }
        }
        on
    }

    /// Commits what is older than the window, so that what is live stays bounded.
    fn settle(&mut self) -> Answer<()> {
        let running: Vec<Receipt> = self.live.iter().skip(WINDOW as usize).copied().collect();
        self.site.report_done(&running)?;
        while self.live.len() as u64 > WINDOW {
            self.live.pop_front();
        }
        let last = self.live.front().map(|receipt| receipt.effect);
        let targets = last.map(Target::Effect).into_iter().collect();
        fence(&self.site, targets)?;
        Ok(())
    }
}

impl Case for Register {
    fn once(&mut self) -> Answer<Duration> {
        if self.live.len() as u64 >= 4 * WINDOW {
            self.settle()?;
        }
        let mut payloads = Payloads::default();
        let on = self.on();
        let call = self.site.call(&mut payloads).after(on);
        let follows = call.follows.clone();
        let placed = self.site.placed(0, call, follows);
        let began = Instant::now();
        let receipts = self.site.store.register(vec![placed], payloads, 0)?;
        let took = began.elapsed();
        self.live.extend(receipts);
        Ok(took)
    }
}

/// How a fence is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `reconcile(closure=True)` over the four branches that own the effects.
    Reconcile,
    /// The owner of the one branch commits it.
    Owner,
    /// `reconcile(closure=True)` of the newest effect, which drags all others along: every edge is
    /// walked.
    Newest,
}

/// One decision that commits `count` effects.
pub struct Fence {
    site: Site,
    count: u64,
    degree: u64,
    by: By,
}

impl Fence {
    pub fn new(dir: Option<&Path>, count: u64, degree: u64, by: By) -> Answer<Self> {
        let branches = if by == By::Owner { 1 } else { 4 };
        let site = Site::new(dir, branches, count + degree)?;
        Ok(Fence { site, count, degree, by })
    }

    /// The same in a store with a history.
    pub fn aged(dir: Option<&Path>, count: u64, degree: u64, history: u64) -> Answer<Self> {
        let mut fence = Self::new(dir, count, degree, By::Reconcile)?;
        fence.site.age(history)?;
        Ok(fence)
    }
}

fn fence(site: &Site, targets: Vec<Target>) -> Answer<usize> {
    let answer = site.store.reconcile(
        targets,
        Vec::new(),
        true,
        Some("bench"),
        None,
        OnConflict::Raise,
        Escalate::Never,
    )?;
    Ok(answer.committed.len())
}

impl Case for Fence {
    fn once(&mut self) -> Answer<Duration> {
        let chained = self.by == By::Newest;
        let receipts = self.site.register_graph(self.count, self.degree, chained)?;
        self.site.report_done(&receipts)?;
        let newest = receipts.last().map(|receipt| Target::Effect(receipt.effect));
        let targets = if chained { newest.into_iter().collect() } else { self.site.targets() };
        let began = Instant::now();
        let committed = match self.by {
            By::Reconcile | By::Newest => fence(&self.site, targets)?,
            By::Owner => {
                let branch = &self.site.branches[0];
                let target = Target::Branch(branch.id);
                let fence = self.site.store.commit(target, branch.token, Escalate::Never, 0)?;
                fence.committed.len()
            }
        };
        let took = began.elapsed();
        if committed as u64 == self.count {
            return Ok(took);
        }
        Err(format!("{committed} effects were committed, not {}", self.count).into())
    }
}

/// One decision that dooms an effect with all that rests on it. A store of its own each time, since
/// what is doomed stays in memory until it is undone.
pub struct Abort {
    dir: Option<PathBuf>,
    count: u64,
    degree: u64,
    plan: bool,
    turn: u64,
}

impl Abort {
    pub fn new(dir: Option<&Path>, count: u64, degree: u64, plan: bool) -> Self {
        Abort { dir: dir.map(Path::to_path_buf), count, degree, plan, turn: 0 }
    }
}

impl Case for Abort {
    fn once(&mut self) -> Answer<Duration> {
        self.turn += 1;
        let dir = self.dir.as_ref().map(|dir| dir.join(self.turn.to_string()));
        if let Some(dir) = &self.dir {
            std::fs::create_dir_all(dir)?;
        }
        let mut site = Site::new(dir.as_deref(), 4, self.turn)?;
        let receipts = site.register_graph(self.count, self.degree, true)?;
        site.report_done(&receipts)?;
        let (root, token) = (Target::Effect(receipts[0].effect), site.branches[0].token);
        let began = Instant::now();
        let answer = site.store.abort(root, token, "bench", None)?;
        if self.plan {
            let rollback = answer.rollback.unwrap_or(RollbackId(0));
            site.store.plan(rollback)?;
        }
        let took = began.elapsed();
        let doomed = answer.doomed.len() + answer.cascaded.len();
        drop(site);
        if let Some(dir) = dir {
            std::fs::remove_dir_all(dir)?;
        }
        if doomed as u64 == self.count {
            return Ok(took);
        }
        Err(format!("{doomed} effects were doomed, not {}", self.count).into())
    }
}

/// Threads that register at once for a while, each in its own branch; the time per registration.
pub struct Group {
    dir: Option<PathBuf>,
    threads: usize,
    lasting: Duration,
    turn: u64,
}

impl Group {
    pub fn new(dir: Option<&Path>, threads: usize, lasting: Duration) -> Self {
        Group { dir: dir.map(Path::to_path_buf), threads, lasting, turn: 0 }
    }
}

impl Case for Group {
    fn once(&mut self) -> Answer<Duration> {
        self.turn += 1;
        let dir = self.dir.as_ref().map(|dir| dir.join(self.turn.to_string()));
        if let Some(dir) = &self.dir {
            std::fs::create_dir_all(dir)?;
        }
        let mut made = Site::new(dir.as_deref(), self.threads, self.turn)?;
        let mut payloads = Payloads::default();
        let call = made.call(&mut payloads);
        let call = Registration { writes: Vec::new(), follows: Follows::These(Vec::new()), ..call };
        // A new store writes its reserve of zeroes with its first batches.
        for _ in 0..16 {
            let placed = made.placed(0, call.clone(), call.follows.clone());
            made.store.register(vec![placed], payloads.clone(), 0)?;
        }
        let began = Instant::now();
        let (site, lasting) = (&made, self.lasting);
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|branch| {
                    let (call, payloads) = (&call, &payloads);
                    scope.spawn(move || {
                        let mut count = 0_u32;
                        while began.elapsed() < lasting {
                            let follows = call.follows.clone();
                            let placed = site.placed(branch, call.clone(), follows);
                            site.store.register(vec![placed], payloads.clone(), 0)?;
                            count += 1;
                        }
                        Ok::<u32, effectstore::Error>(count)
                    })
                })
                .collect();
            let counts: Vec<_> =
                threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            counts
        });
        let took = began.elapsed();
        let mut all = 0;
        for count in counts {
            all += count.map_err(|_| "a thread panicked")??;
        }
        drop(made);
        if let Some(dir) = dir {
            std::fs::remove_dir_all(dir)?;
        }
        Ok(took / all.max(1))
    }
}
