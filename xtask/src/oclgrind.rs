//! The oclgrind stage: small shapes of every kernel on a simulated device that watches each access to memory.
//!
//! oclgrind is used as one more OpenCL driver (its wrapper program preloads a library, which fails where the loader is opened at
//! run time). It reports findings to a log and lets the kernel go on, so the log decides, not the exit status.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::install::debian;
use crate::process::stream;
use crate::report::{Gap, Outcome, Report};
use crate::workspace::{Workspace, write_if_changed};

const PACKAGE: &str = "oclgrind";
const UNTESTED: &str = "kernels under oclgrind (invalid accesses to memory, races)";

/// Where Debian and a build from source put the driver.
const LIBRARIES: [&str; 2] =
    ["/usr/lib/oclgrind/liboclgrind-rt-icd.so", "/usr/local/lib/oclgrind/liboclgrind-rt-icd.so"];

/// Log lines of a finding that are shown; the file has the rest.
const SHOWN: usize = 60;

/// What is checked, and what makes errors visible.
///
/// `OCLGRIND_UNINITIALIZED` is not among them: with it oclgrind 21.10 reported values whose results are right, aborted on
/// optimised kernels and crashed with a caching pool; why is not known. Reads of uninitialised memory are therefore not checked.
const SETTINGS: [(&str, &str); 7] = [
    ("OCLGRIND_CHECK_API", "1"),
    ("OCLGRIND_DATA_RACES", "1"),
    // Kernels do what is written, also what an optimizer would find useless, and findings name their line.
    ("OCLGRIND_BUILD_OPTIONS", "-cl-opt-disable"),
    // More than one unit, so that long sums are split over them.
    ("OCLGRIND_COMPUTE_UNITS", "4"),
    // What groups hand over is reported, too, and must not use this up.
    ("OCLGRIND_MAX_ERRORS", "4000"),
    ("NETCL_CACHE", "0"),
    // Blocks of exactly the size asked for: a pool's slack would swallow overruns.
    ("NETCL_MAX_CACHED_GB", "0"),
];

/// Runs the small tests on oclgrind alone and reads its log.
pub(crate) fn run(workspace: &Workspace, report: &mut Report) -> Result<Outcome> {
    debian::install(&[PACKAGE], UNTESTED, report);
    let Some(library) = LIBRARIES.into_iter().find(|file| Path::new(file).is_file()) else {
        let missing = format!("{PACKAGE} is not installed");
        return Ok(Outcome::Skipped(Gap { missing, untested: UNTESTED.to_owned() }));
    };
    check(workspace, library)?;
    println!("oclgrind found nothing");
    Ok(Outcome::Passed)
}

/// Runs the test binary under the checker.
fn check(workspace: &Workspace, library: &str) -> Result<()> {
    let folder = workspace.check().join("oclgrind");
    let (vendors, log) = (folder.join("vendors"), folder.join("oclgrind.log"));
    std::fs::create_dir_all(&vendors).with_context(|| format!("{} could not be created", vendors.display()))?;
    write_if_changed(&vendors.join("oclgrind.icd"), &format!("{library}\n"))?;
    std::fs::write(&log, "").with_context(|| format!("{} could not be written", log.display()))?;

    // The whole workspace: a smaller selection has other features, and compiles anew.
    // Not nextest: each process would begin the log anew.
    let mut command = workspace.cargo("test --workspace --profile ci --test oclgrind -- --test-threads 1 --nocapture");
    command.env("OCL_ICD_VENDORS", &vendors).env("OCLGRIND_LOG", &log).envs(SETTINGS);
    command.env_remove("NETCL_LIMITS").env_remove("NETCL_DEVICE");
    let outcome = stream(&mut command);

    // A finding explains a failed test better than the wrong numbers do.
    let text = std::fs::read(&log).with_context(|| format!("{} could not be read", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let findings = findings(&text);
    if let Some(first) = findings.first() {
        findings.iter().flatten().take(SHOWN).for_each(|line| println!("{line}"));
        let first = first[0].trim();
        bail!("oclgrind reports {} errors, the first: {first} (the whole log: {})", findings.len(), log.display());
    }
    outcome
}

/// What a log complains of, each with its lines. oclgrind writes nothing else into its log, so whatever is there counts, but
/// for [`handed_over`]: a list of known words would let an unknown complaint pass.
fn findings(log: &str) -> Vec<Vec<&str>> {
    let mut findings: Vec<Vec<&str>> = Vec::new();
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        // Each finding is a heading at the margin with indented details below.
        match findings.last_mut() {
            Some(finding) if line.starts_with(char::is_whitespace) => finding.push(line),
            _ => findings.push(vec![line]),
        }
    }
    findings.retain(|finding| !handed_over(finding));
    findings
}

/// Whether a race is one work-group taking up what another left for it, which a counter and fences order: the checker knows
/// neither, and kernels reach such memory as `volatile` or atomically, and no other.
fn handed_over(finding: &[&str]) -> bool {
    let accesses = finding.windows(2).filter(|pair| pair[0].contains("entity:"));
    let groups: Vec<_> = accesses.clone().filter_map(|pair| pair[0].split("Group").nth(1)).collect();
    let ordered = |access: &str| access.contains(" volatile ") || access.contains("atomic_");
    finding[0].contains("data race at global memory")
        && matches!(groups[..], [first, second] if first != second)
        && accesses.clone().all(|pair| ordered(pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERRUN: &str = "\nInvalid write of size 4 at global memory address 0x100000000001c\n\tKernel: fill\n\
                           \tEntity: Global(7,0,0) Local(7,0,0) Group(0,0,0)\n\nRead-write data race at local memory\n\tKernel: sum\n";

    #[test]
    fn a_log_with_anything_in_it_is_a_finding() {
        assert!(findings("").is_empty() && findings("\n \n").is_empty());
        let found = findings(OVERRUN);
        assert!(found.len() == 2 && found[0][0].contains("Invalid write of size 4"), "{found:?}");
        assert_eq!(findings("something unheard of").len(), 1);
    }

    #[test]
    fn what_groups_hand_over_is_no_race() {
        let race = |place: &str, group: u32, access: &str| {
            format!(
                "\nRead-write data race at {place} memory address 0x7\n\tKernel: sum\n\t\n\
                 \tFirst entity:  Global(0,0,0) Local(0,0,0) Group({group},0,0)\n\t  %1 = load volatile float\n\
                 \tAt line 5 of input.cl:\n\t  partial[0];\n\t\n\
                 \tSecond entity: Global(256,0,0) Local(0,0,0) Group(1,0,0)\n\t  {access}\n\
                 \tAt line 9 of input.cl:\n\t  partial[0] = sum;\n"
            )
        };
        let handed = race("global", 0, "store volatile float %2");
        let counted = race("global", 0, "%3 = call i32 @_Z10atomic_incPU3AS1Vj");
        assert!(findings(&(handed.clone() + &counted)).is_empty());
        for other in [
            race("global", 0, "store float %2"),
            race("global", 1, "store volatile float %2"),
            race("local", 0, "store volatile float %2"),
        ] {
            assert_eq!(findings(&(handed.clone() + &other)).len(), 1, "{other}");
        }
        let log = handed + OVERRUN;
        let found = findings(&log);
        assert!(found.len() == 2 && found[0][0].starts_with("Invalid write"), "{found:?}");
    }
}
