//! Collectives over ranks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test should panic")]

mod collectives;
mod failures;
mod gradients;
mod group;
mod models;
mod sharded;
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use netcl_distributed::{Group, Processes, Threads};

/// Runs `work` on every rank of both kinds; processes are threads here as well, which share the memory in the same way.
fn on_ranks<T: Send>(size: usize, work: impl Fn(&Group) -> T + Sync) -> Vec<Vec<T>> {
    vec![on_threads(size, &work), on_processes(size, &work)]
}

fn on_threads<T: Send>(size: usize, work: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let groups: Vec<Group> = Threads::new(size).into_iter().map(Group::new).collect();
    std::thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(&group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn on_processes<T: Send>(size: usize, work: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let folder = folder();
    let results = std::thread::scope(|scope| {
        let (work, folder) = (&work, &folder);
        let rank = |rank| scope.spawn(move || work(&Group::new(Processes::join(folder, rank, size).unwrap())));
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // Nothing is left behind.
    std::fs::remove_dir(&folder).unwrap();
    results
}

fn folder() -> std::path::PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("netcl-ranks-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}
