//! Running other programs: output streams live, failure is an error that shows the command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command with its output going straight to the terminal.
pub(crate) fn stream(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("`{}` could not be started", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command quietly and returns what it printed; on failure the error carries its standard error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("`{}` could not be started", shown(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}: {}", shown(command), output.status, complaint.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed something that is not UTF-8", shown(command)))
}

/// Whether a quiet run of the command succeeds; a program that does not exist counts as "no".
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The file of a program in the first of `folders` that has it, then in `PATH`.
pub(crate) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    file.is_file()
}

/// The command line as one would type it: the program without its folder, quotes only where a space demands them.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let quoted = |part: &OsStr| {
        let text = part.to_string_lossy();
        if text.contains(char::is_whitespace) { format!("'{text}'") } else { text.into_owned() }
    };
    std::iter::once(program).chain(command.get_args()).map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_returns_output_and_reports_complaints() {
        assert_eq!(capture(Command::new("sh").args(["-c", "echo hello"])).unwrap(), "hello\n");
        let error = capture(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn command_lines_are_shown_as_typed() {
        assert_eq!(shown(Command::new("/usr/bin/cargo").args(["run", "a b"])), "cargo run 'a b'");
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = stream(&mut Command::new("netcl-no-such-program")).unwrap_err();
        assert!(format!("{error:#}").contains("netcl-no-such-program"));
        assert!(!succeeds(&mut Command::new("netcl-no-such-program")));
    }

    #[cfg(unix)]
    #[test]
    fn programs_are_found_in_the_given_folders_first_and_must_be_executable() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sh");
        std::fs::write(&file, "").unwrap();
        let folders = [folder.path().to_path_buf()];
        assert_ne!(find_program("sh", &folders).as_ref(), Some(&file), "not executable yet");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_program("sh", &folders), Some(file));
        assert_eq!(find_program("netcl-no-such-program", &folders), None);
    }
}
