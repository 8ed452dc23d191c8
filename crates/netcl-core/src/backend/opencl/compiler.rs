//! Processes that compile programs for another one, for drivers that compile one program at a time in a process.
//!
//! A process takes requests on its standard input and leaves what it compiled in the program cache, and thereby what the driver
//! makes of it in the driver's own; a line on standard output says that it is there. Drivers print there as well, so other
//! lines are passed over. It ends when its input does, so nothing of it outlives the program that started it.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use super::build::{Builder, Source};
use super::context::Context;
use super::device::Device;
use super::platform::discover;
use crate::debug::{self, Level};

/// What a program that is started again as a compiler finds on its command line.
const ARGUMENT: &str = "--netcl-compiler";
/// The longest part of a request that is believed.
const LONGEST: u32 = 64 << 20;
const DONE: &str = "netcl: request done";

static COMMAND: OnceLock<(PathBuf, Vec<OsString>)> = OnceLock::new();

/// How a process that calls [`serve`] is started; the first word on it counts.
pub fn set_command(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) {
    COMMAND.get_or_init(|| (program.into(), arguments.into_iter().collect()));
}

/// Lets this program start itself again as compilers, where a driver compiles one program at a time in a process: call it first
/// in `main`. It does not return in a process that is one.
///
/// Without it such kernels are compiled one after the other. Python's package and the `netcl` command do the same.
///
/// ```
/// netcl_core::backend::opencl::compiler::compile_in_processes();
/// // the program
/// ```
pub fn compile_in_processes() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        // Whoever reads the answers sees that they end.
        let _ = serve(io::stdin().lock(), io::stdout().lock());
        std::process::exit(0);
    }
    if let Ok(program) = std::env::current_exe() {
        set_command(program, [ARGUMENT.into()]);
    }
}

/// A process that compiles for this one; it ends when this is dropped.
pub(super) struct Compiler {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Compiler {
    /// Whether somebody said how to start one.
    pub(super) fn is_known() -> bool {
        COMMAND.get().is_some()
    }

    pub(super) fn start() -> io::Result<Compiler> {
        let (program, arguments) = COMMAND.get().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        if !debug::wants(Level::Compiles) {
            command.stderr(Stdio::null());
        }
        // Ctrl+C is for the program at the terminal, which ends its compilers.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command.spawn()?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Compiler { process, requests, answers: BufReader::new(answers) })
    }

    /// Has a program compiled, and waits for it. A program that does not compile is no error here: whoever needs it will see.
    pub(super) fn build(&mut self, device: &Device, source: &Source) -> io::Result<()> {
        for part in [&device.identity(), &source.options, &source.text] {
            let length = u32::try_from(part.len()).map_err(io::Error::other)?;
            self.requests.write_all(&length.to_le_bytes())?;
            self.requests.write_all(part.as_bytes())?;
        }
        self.requests.write_all(&[u8::from(source.retarget)])?;
        self.requests.flush()?;
        let mut line = String::new();
        while line.trim_end() != DONE {
            line.clear();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // One that is compiling for nobody need not end that first.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Compiles what comes in, until nothing does.
///
/// # Errors
/// A request that makes no sense, and what goes wrong with reading and writing.
pub fn serve(mut requests: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut found: Option<(String, Device, Context)> = None;
    while let Some(identity) = part(&mut requests)? {
        let mut next = || part(&mut requests)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
        let (options, text) = (next()?, next()?);
        let mut retarget = [0];
        requests.read_exact(&mut retarget)?;
        if found.as_ref().is_none_or(|(known, ..)| *known != identity) {
            found = open(&identity).map(|(device, context)| (identity, device, context));
        }
        if let Some((_, device, context)) = &found {
            // An error is found again, and reported, by whoever asked.
            let _ = Builder::global().build(context, device, &Source { text, options, retarget: retarget[0] != 0 });
        }
        writeln!(answers, "{DONE}")?;
        answers.flush()?;
    }
    Ok(())
}

/// The device of this identity.
fn open(identity: &str) -> Option<(Device, Context)> {
    let device = discover().ok()?.devices().into_iter().find(|device| device.identity() == identity)?;
    let context = Context::new(std::slice::from_ref(&device)).ok()?;
    Some((device, context))
}

/// A text with its length before it; `None` where the input ends.
fn part(input: &mut impl Read) -> io::Result<Option<String>> {
    let mut length = [0; 4];
    if let Err(error) = input.read_exact(&mut length) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a part of a request has {length} bytes")));
    }
    let mut text = String::new();
    input.take(length.into()).read_to_string(&mut text)?;
    if text.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::cache::Store;
    use super::*;

    /// Set where a test runs as the compiler of another.
    const SERVES: &str = "NETCL_TEST_SERVES";
    const TEXT: &str = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2.0f; }";

    /// A process of our own compiles for this one, which loads the program from the cache.
    #[test]
    fn a_compiler_leaves_programs_in_the_cache() {
        if std::env::var_os(SERVES).is_some() {
            return serve(io::stdin().lock(), io::stdout().lock()).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: each test has a process of its own, and nothing else runs in it yet.
        unsafe {
            std::env::set_var("NETCL_CACHE_DIR", folder.path());
            std::env::set_var(SERVES, "1");
        }
        let name = "backend::opencl::compiler::tests::a_compiler_leaves_programs_in_the_cache";
        set_command(std::env::current_exe().unwrap(), [name.into(), "--exact".into(), "--nocapture".into()]);
        for device in discover().map(|found| found.devices()).unwrap_or_default() {
            let context = Context::new(std::slice::from_ref(&device)).unwrap();
            let builder = Builder::new(Store::programs());
            let source = Source::new(TEXT, "-DUNIQUE");
            let broken = Source::new("__kernel void broken(", "");
            let mut compiler = Compiler::start().unwrap();
            compiler.build(&device, &broken).unwrap();
            compiler.build(&device, &source).unwrap();
            assert!(builder.build(&context, &device, &source).is_ok());
            assert!(builder.build(&context, &device, &broken).is_err());
            let stats = builder.stats();
            assert_eq!((stats.builds, stats.hits, stats.negative_hits), (0, 1, 1), "{}", device.name());
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_errors() {
        let kind = |bytes: &[u8]| serve(Cursor::new(bytes.to_vec()), io::sink()).map_err(|error| error.kind());
        assert_eq!(kind(&[]), Ok(()));
        assert_eq!(kind(&[255; 4]), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(&[9, 0, 0, 0, b'x']), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(kind(&[1, 0, 0, 0, 0xff]), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(&[1, 0, 0, 0, b'x']), Err(io::ErrorKind::UnexpectedEof));
    }
}
