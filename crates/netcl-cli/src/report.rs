//! `netcl report`: runs beside each other on one HTML page.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use netcl::trainer::report::{self, RunContent};

use crate::Verdict;
use crate::output::{name, print, printable};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Folders of runs, or folders that hold some
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "runs.html")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let mut runs: Vec<(PathBuf, RunContent)> = Vec::new();
    for folder in &arguments.folders {
        match report::read(folder) {
            Ok(run) => runs.push((folder.clone(), run)),
            Err(error) => {
                let inside = runs_in(folder);
                if inside.is_empty() {
                    eprintln!("netcl: left out: {}", printable(&error.to_string()));
                }
                runs.extend(inside);
            }
        }
    }
    if runs.is_empty() {
        bail!("report: none of the folders holds a run; `netcl train` makes runs in runs/");
    }
    // Folders of the same name are told apart by their paths.
    let titles: Vec<String> = runs.iter().map(|(_, run)| run.title.clone()).collect();
    for (path, run) in &mut runs {
        if titles.iter().filter(|title| **title == run.title).count() > 1 {
            run.title = path.display().to_string();
        }
        for note in &run.notes {
            eprintln!("netcl: {}: {}", name(&run.title, 80), printable(note));
        }
    }
    let runs: Vec<RunContent> = runs.into_iter().map(|(_, run)| run).collect();
    report::write(&arguments.out, &runs)?;
    let count = if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) };
    print(&format!("wrote {} ({count}): open it in a browser", arguments.out.display()))?;
    Ok(Verdict::Good)
}

/// The runs in the folders of a folder, by name: shells that know no `*` name the outer one.
fn runs_in(folder: &Path) -> Vec<(PathBuf, RunContent)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut inner: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    inner.sort();
    inner.into_iter().filter_map(|path| report::read(&path).ok().map(|run| (path, run))).collect()
}
