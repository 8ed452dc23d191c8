//! Several checkpoints of one run: the newest few, the best one, and links to the last and the best.
//!
//! `run/state.netcl` becomes `run/state-000100.netcl`, `run/state-000200.netcl`, ... with the links `run/state-last.netcl` and
//! `run/state-best.netcl`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::atomic::{folder_of, link_atomically};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};

/// Which checkpoints of a run stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// As many of the newest, at least one. The best one stays as well.
    pub keep: usize,
    /// The number of this one; one above the largest unless given.
    pub step: Option<u64>,
    /// Whether it is the best so far.
    pub best: bool,
}

/// Writes a numbered checkpoint beside `path`, moves the links, and then removes those that need not stay: whenever the process
/// is killed, the link to the last one leads to a whole file. Returns where it is.
///
/// # Errors
/// What could not be written; the checkpoints before it are still there.
pub fn write_rotating(checkpoint: &Checkpoint, path: impl AsRef<Path>, rotation: Rotation) -> Result<PathBuf> {
    let path = path.as_ref();
    let family = Family::of(path)?;
    let before = family.members()?;
    let step = rotation.step.unwrap_or_else(|| before.keys().next_back().map_or(1, |last| last + 1));
    let name = family.name(&format!("{step:06}"));
    let file = family.folder.join(&name);
    checkpoint.write(&file)?;
    link_atomically(&family.folder.join(family.name(LAST)), &name)?;
    if rotation.best {
        link_atomically(&family.folder.join(family.name(BEST)), &name)?;
    }
    let best = fs::read_link(family.folder.join(family.name(BEST))).ok();
    let others = before.into_iter().rev().filter(|(number, _)| *number != step);
    for (_, other) in others.skip(rotation.keep.max(1) - 1) {
        if best.as_deref() != Some(Path::new(&other)) {
            let other = family.folder.join(other);
            fs::remove_file(&other).map_err(|reason| Error::Write { path: other, reason })?;
        }
    }
    Ok(file)
}

/// The checkpoint that `path` means: the file itself, or the last one that [`write_rotating`] wrote under that name.
pub fn newest(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    let rotated = Family::of(path).ok().and_then(|family| {
        let last = family.folder.join(family.name(LAST));
        let newest = || Some(family.folder.join(family.members().ok()?.pop_last()?.1));
        if last.exists() { Some(last) } else { newest() }
    });
    rotated.filter(|_| !path.exists()).unwrap_or_else(|| path.to_owned())
}

const LAST: &str = "last";
const BEST: &str = "best";

/// The names of one run's checkpoints.
struct Family<'a> {
    folder: &'a Path,
    stem: String,
    extension: String,
}

impl Family<'_> {
    fn of(path: &Path) -> Result<Family<'_>> {
        let Some(stem) = path.file_stem() else {
            let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path names no file");
            return Err(Error::Write { path: path.to_owned(), reason });
        };
        let extension = path.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
        Ok(Family { folder: folder_of(path), stem: stem.to_string_lossy().into_owned(), extension })
    }

    fn name(&self, which: &str) -> String {
        format!("{}-{which}{}", self.stem, self.extension)
    }

    /// The names of those that are there, by number.
    fn members(&self) -> Result<BTreeMap<u64, String>> {
        let unreadable = |reason| Error::Read { path: self.folder.to_owned(), reason };
        let entries = match fs::read_dir(self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries.map_err(unreadable)?,
        };
        let mut members = BTreeMap::new();
        for entry in entries {
            let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix(&self.stem).and_then(|rest| rest.strip_prefix('-'));
            let number = number.and_then(|rest| rest.strip_suffix(&self.extension));
            if let Some(number) = number.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
                number.parse().ok().and_then(|number: u64| members.insert(number, name.clone()));
            }
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use netcl_nn::Linear;
    use netcl_nn::autograd::manager;

    use super::*;

    #[test]
    fn the_newest_and_the_best_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/state.netcl");
        let model = Linear::new(&manager().cpu().queue, 2, 2).unwrap();
        let write = |step: u64, best| {
            let mut checkpoint = Checkpoint::new(&model, Default::default()).unwrap();
            checkpoint.set_progress(step.into());
            write_rotating(&checkpoint, &path, Rotation { keep: 2, step: Some(step), best }).unwrap()
        };
        let names = || {
            let mut names: Vec<_> = fs::read_dir(path.parent().unwrap())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        for step in [5, 10, 15, 20] {
            write(step, step == 10);
        }
        let links = ["state-best.netcl", "state-last.netcl"];
        assert_eq!(names(), [&["state-000010.netcl", "state-000015.netcl", "state-000020.netcl"][..], &links].concat());
        let progress = |path: &Path| Checkpoint::read(path).unwrap().progress().clone();
        assert_eq!(progress(&newest(&path)), 20);
        assert_eq!(progress(&path.with_file_name("state-best.netcl")), 10);
        // A run that went back: its checkpoint is the last one although its number is not the largest.
        write(12, true);
        assert_eq!(progress(&newest(&path)), 12);
        assert_eq!(names(), [&["state-000012.netcl", "state-000020.netcl"][..], &links].concat());
        fs::remove_file(path.with_file_name("state-last.netcl")).unwrap();
        assert_eq!(progress(&newest(&path)), 20);
    }
}
