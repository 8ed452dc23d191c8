//! `netcl cache`: what lies in the program cache, and how to make it smaller.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use netcl::core::backend::opencl::cache::{EntryInfo, Pruned};
use netcl::runtime::cache::{self, Listing};
use serde_json::{Value, json};

use crate::Verdict;
use crate::output::{age, bytes, parse_size, print, print_json, print_table, shortened, table};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// List the compiled programs, the most recently used first
    List(Format),
    /// Remove the programs that were not used for long, then the least recently used ones down to a size
    Prune {
        /// Keep at most this much: bytes, or a number with K, M or G
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        max_size: Option<u64>,
        /// Remove what was not used for this many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u64>,
        #[command(flatten)]
        format: Format,
    },
    /// Remove everything; programs are compiled again when next needed
    Clear(Format),
}

#[derive(Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(action: &Action) -> Result<Verdict> {
    match action {
        Action::List(format) => list(format.json)?,
        Action::Clear(format) => removed(cache::clear()?, format.json)?,
        Action::Prune { max_size: None, older_than: None, .. } => {
            bail!("cache prune: say what to keep: --max-size 200M, --older-than 30, or both")
        }
        Action::Prune { max_size, older_than, format } => {
            let limit = older_than.map(|days| Duration::from_secs(days.saturating_mul(86_400)));
            removed(cache::prune(*max_size, limit)?, format.json)?;
        }
    }
    Ok(Verdict::Good)
}

fn list(as_json: bool) -> Result<()> {
    let listings = cache::list()?;
    if as_json {
        let stores: Vec<Value> = listings.iter().map(listing_json).collect();
        return print_json(&json!({ "enabled": !listings.is_empty(), "stores": stores }));
    }
    if listings.is_empty() {
        return print("The program cache is switched off (NETCL_CACHE=0) or has no folder.");
    }
    for listing in &listings {
        let (count, size) = (listing.entries.len(), bytes(listing.bytes()));
        print(&format!("{}: {count} entries, {size} in {}", listing.kind, listing.dir.display()))?;
        if listing.kind == "programs" && count > 0 {
            print_programs(&listing.entries)?;
        }
    }
    Ok(())
}

fn print_programs(entries: &[EntryInfo]) -> Result<()> {
    let mut rows = table(&["used", "size", "kernels", "device"].map(str::to_owned));
    for entry in entries {
        let (kernels, device) = match &entry.header {
            None => ("(damaged)".to_owned(), String::new()),
            Some(header) if header.failed => ("(does not compile)".to_owned(), header.device.clone()),
            Some(header) => (shortened(&header.kernels.join(", "), 60), header.device.clone()),
        };
        rows.add_row([age(entry.age), bytes(entry.bytes), kernels, device]);
    }
    print_table(&rows)
}

fn listing_json(listing: &Listing) -> Value {
    let entries: Vec<Value> = listing
        .entries
        .iter()
        .map(|entry| {
            let header = entry.header.as_ref();
            json!({
                "path": entry.path,
                "bytes": entry.bytes,
                "unused_seconds": entry.age.as_secs(),
                "damaged": header.is_none(),
                "device": header.map(|header| &header.device),
                "options": header.map(|header| &header.options),
                "kernels": header.map(|header| &header.kernels),
                "failed_build": header.map(|header| header.failed),
            })
        })
        .collect();
    json!({ "kind": listing.kind, "dir": listing.dir, "bytes": listing.bytes(), "entries": entries })
}

fn removed(pruned: Pruned, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&json!({ "removed": pruned.entries, "bytes": pruned.bytes }));
    }
    print(&format!("Removed {} entries, {}.", pruned.entries, bytes(pruned.bytes)))
}
