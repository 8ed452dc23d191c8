//! Errors of the OpenCL layer: the call, the code, what it means, what to do.

use std::fmt;

use opencl_sys::cl_int;

use super::api::LoadError;
use crate::error::ErrorKind;

/// A result of the OpenCL layer.
pub type ClResult<T> = Result<T, ClError>;

/// Everything that can go wrong between us and a driver.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClError {
    /// A call that the driver refused.
    #[error("{call} failed with {} ({code}){}: {}", name, Detail(detail), hint)]
    Call {
        /// The OpenCL function.
        call: &'static str,
        /// The code it returned.
        code: i32,
        /// The code's name, `CL_INVALID_...`.
        name: &'static str,
        /// What the code usually means and what to do.
        hint: &'static str,
        /// The objects and sizes of this call, where known.
        detail: Option<Box<str>>,
    },
    /// There is no OpenCL library.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A program that does not compile.
    #[error(transparent)]
    Build(#[from] Box<BuildError>),
    /// A call in a child that was forked after OpenCL was in use.
    #[error(
        "{call}: this process was forked after OpenCL was initialised, and drivers do not survive a fork; use threads or spawned processes, or fork before the first OpenCL call"
    )]
    Forked {
        /// The OpenCL function that was not called.
        call: &'static str,
    },
    /// A call that is wrong before any driver sees it.
    #[error("{call}: {what}")]
    Usage {
        /// The operation.
        call: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
}

struct Detail<'a>(&'a Option<Box<str>>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |text| write!(f, " [{text}]"))
    }
}

impl ClError {
    pub(super) fn call(call: &'static str, code: cl_int) -> Self {
        let (name, hint) = explain(code);
        ClError::Call { call, code, name, hint, detail: None }
    }

    pub(super) fn usage(call: &'static str, what: impl Into<String>) -> Self {
        ClError::Usage { call, what: what.into() }
    }

    /// Adds what the call was about; other kinds of error speak for themselves.
    pub(super) fn about(mut self, text: impl FnOnce() -> String) -> Self {
        if let ClError::Call { detail, .. } = &mut self {
            *detail = Some(text().into_boxed_str());
        }
        self
    }

    /// The driver's code, when a driver gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            ClError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// True for failures to allocate, on the host or the device: the caller may free memory and try again.
    pub fn is_out_of_memory(&self) -> bool {
        // CL_MEM_OBJECT_ALLOCATION_FAILURE and CL_OUT_OF_HOST_MEMORY. CL_OUT_OF_RESOURCES (-5) also means a kernel that
        // crashed or needs too many registers, so it does not count.
        matches!(self.code(), Some(-4 | -6))
    }

    /// Which Python exception this becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ClError::Build(_) => ErrorKind::Build,
            ClError::Usage { .. } => ErrorKind::Value,
            ClError::Call { .. } if self.is_out_of_memory() => ErrorKind::Memory,
            ClError::Call { .. } | ClError::Load(_) | ClError::Forked { .. } => ErrorKind::Runtime,
        }
    }
}

/// Turns a driver's code into a result.
#[inline]
pub(super) fn check(call: &'static str, code: cl_int) -> ClResult<()> {
    if code == 0 { Ok(()) } else { Err(ClError::call(call, code)) }
}

/// A program that does not compile: the compiler's log and the numbered source.
///
/// ```
/// use netcl_core::backend::opencl::BuildError;
/// let e = BuildError {
///     device: "some device".into(),
///     options: "-cl-std=CL1.2".into(),
///     log: "<source>:2:5: error: unknown type name 'floaty'".into(),
///     source: "__kernel void f(\n    floaty x) {}\n".into(),
///     cached: false,
/// };
/// let text = e.to_string();
/// assert!(text.contains("unknown type name"));
/// assert!(text.contains(">    2 |     floaty x) {}"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The device that the program was built for.
    pub device: String,
    /// The compiler options, complete.
    pub options: String,
    /// What the compiler said.
    pub log: String,
    /// The source text as the compiler got it.
    pub source: String,
    /// True for a failure that the program cache remembered.
    pub cached: bool,
}

/// Sources up to this many lines are printed whole; of longer ones only the surroundings of the complaints.
const WHOLE_SOURCE_LINES: usize = 120;
/// Lines shown on either side of a complaint in a long source.
const CONTEXT_LINES: usize = 4;

impl BuildError {
    /// The whole source with line numbers; lines that the log complains about are marked with `>`.
    pub fn numbered_source(&self) -> String {
        self.number(|_| true)
    }

    /// Whether the compiler found an error in a line of the source. Otherwise the reason may be one that passes, such as a full disk.
    pub fn blames_source(&self) -> bool {
        let lines = self.source.lines().count();
        self.log.lines().filter(|text| text.contains("error")).filter_map(blamed_line).any(|line| line <= lines)
    }

    fn number(&self, show: impl Fn(usize) -> bool) -> String {
        let blamed = self.blamed_lines();
        let mut text = String::new();
        let mut gap = false;
        for (index, line) in self.source.lines().enumerate() {
            let number = index + 1;
            if show(number) {
                let mark = if blamed.contains(&number) { '>' } else { ' ' };
                text.push_str(&format!("{mark} {number:4} | {line}\n"));
                gap = false;
            } else if !gap {
                text.push_str("   ... |\n");
                gap = true;
            }
        }
        text
    }

    fn blamed_lines(&self) -> Vec<usize> {
        let complaints = self.log.lines().filter(|text| text.contains("error") || text.contains("warning"));
        complaints.filter_map(blamed_line).collect()
    }
}

/// The line number in a line of a log: `name:12:5: error: ...` (Clang), `error: name:12:5: ...` (PoCL), `name(12): error: ...`,
/// `name, line 12; error : ...` (NVIDIA's assembler).
fn blamed_line(text: &str) -> Option<usize> {
    let number = |part: &str| part.trim().trim_start_matches("line ").parse::<usize>().ok().filter(|&n| n > 0);
    text.split([':', '(', ')', ',', ';']).skip(1).find_map(number)
}

impl std::error::Error for BuildError {}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "an OpenCL program does not compile for {} (options: {})", self.device, self.options.trim())?;
        let log = self.log.trim_matches(['\0', '\n', ' ']);
        writeln!(f, "--- compiler log ---\n{}", if log.is_empty() { "(the compiler said nothing)" } else { log })?;
        if self.cached {
            writeln!(f, "(remembered by the program cache; `netcl cache clear` has it built again)")?;
        } else if !self.blames_source() {
            let what = "the log blames no line of the source: is the disk full, or a folder of the driver read-only?";
            writeln!(f, "({what} The next run builds it again)")?;
        }
        let blamed = self.blamed_lines();
        let long = self.source.lines().count() > WHOLE_SOURCE_LINES;
        let shown = if long && !blamed.is_empty() {
            self.number(|n| blamed.iter().any(|&b| n.abs_diff(b) <= CONTEXT_LINES))
        } else {
            self.numbered_source()
        };
        write!(f, "--- source ---\n{}", shown.trim_end_matches('\n'))
    }
}

/// The name of an OpenCL code and what to do about it.
fn explain(code: cl_int) -> (&'static str, &'static str) {
    match code {
        0 => ("CL_SUCCESS", "nothing is wrong"),
        -1 => ("CL_DEVICE_NOT_FOUND", "the platform has no device of this kind"),
        -2 => ("CL_DEVICE_NOT_AVAILABLE", "the device is busy or switched off; see whether another process holds it"),
        -3 => ("CL_COMPILER_NOT_AVAILABLE", "the driver has no compiler; install the full driver package"),
        -4 => ("CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has no memory left; free buffers or use smaller ones"),
        -5 => (
            "CL_OUT_OF_RESOURCES",
            "the kernel crashed or needs more registers or local memory than there are; try a smaller work-group",
        ),
        -6 => ("CL_OUT_OF_HOST_MEMORY", "the host has no memory left"),
        -7 => (
            "CL_PROFILING_INFO_NOT_AVAILABLE",
            "ask for a profiling queue (NETCL_PROFILE_EVENTS=1) and wait for the event",
        ),
        -8 => ("CL_MEM_COPY_OVERLAP", "source and destination overlap; copy through another buffer"),
        -9 => ("CL_IMAGE_FORMAT_MISMATCH", "the images have different formats"),
        -10 => ("CL_IMAGE_FORMAT_NOT_SUPPORTED", "the device cannot use this image format"),
        -11 => ("CL_BUILD_PROGRAM_FAILURE", "the program does not compile; read its log"),
        -12 => ("CL_MAP_FAILURE", "the buffer could not be mapped; read it instead"),
        -13 => ("CL_MISALIGNED_SUB_BUFFER_OFFSET", "round the origin to the device's base address alignment"),
        -14 => ("CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "an earlier command failed; look for the first error"),
        -15 => ("CL_COMPILE_PROGRAM_FAILURE", "the program does not compile; read its log"),
        -16 => ("CL_LINKER_NOT_AVAILABLE", "the driver has no linker"),
        -17 => ("CL_LINK_PROGRAM_FAILURE", "the program does not link; read its log"),
        -18 => ("CL_DEVICE_PARTITION_FAILED", "the device cannot be divided so"),
        -19 => ("CL_KERNEL_ARG_INFO_NOT_AVAILABLE", "build the program with -cl-kernel-arg-info"),
        -30 => ("CL_INVALID_VALUE", "an argument is outside its range"),
        -31 => ("CL_INVALID_DEVICE_TYPE", "this is no device type"),
        -32 => ("CL_INVALID_PLATFORM", "this is no platform; was the driver replaced while running?"),
        -33 => ("CL_INVALID_DEVICE", "the device does not belong to this context or platform"),
        -34 => ("CL_INVALID_CONTEXT", "the objects belong to different contexts, or the context is gone after a crash"),
        -35 => ("CL_INVALID_QUEUE_PROPERTIES", "the device cannot make such a queue"),
        -36 => ("CL_INVALID_COMMAND_QUEUE", "the queue is gone, or an earlier kernel crashed it"),
        -37 => ("CL_INVALID_HOST_PTR", "the host pointer and the flags contradict each other"),
        -38 => ("CL_INVALID_MEM_OBJECT", "the buffer is not valid in this context"),
        -39 => ("CL_INVALID_IMAGE_FORMAT_DESCRIPTOR", "the image format is not valid"),
        -40 => ("CL_INVALID_IMAGE_SIZE", "the image is too large"),
        -41 => ("CL_INVALID_SAMPLER", "this is no sampler"),
        -42 => ("CL_INVALID_BINARY", "the binary is not for this device or driver; clear the program cache"),
        -43 => ("CL_INVALID_BUILD_OPTIONS", "the compiler does not know one of the options"),
        -44 => ("CL_INVALID_PROGRAM", "this is no program"),
        -45 => ("CL_INVALID_PROGRAM_EXECUTABLE", "the program is not built for this device"),
        -46 => ("CL_INVALID_KERNEL_NAME", "the program has no kernel of this name"),
        -47 => ("CL_INVALID_KERNEL_DEFINITION", "the kernel differs between the devices of the program"),
        -48 => ("CL_INVALID_KERNEL", "this is no kernel"),
        -49 => ("CL_INVALID_ARG_INDEX", "the kernel has fewer arguments"),
        -50 => ("CL_INVALID_ARG_VALUE", "the argument's value does not fit its type"),
        -51 => ("CL_INVALID_ARG_SIZE", "the argument has another size in the kernel; compare the types"),
        -52 => ("CL_INVALID_KERNEL_ARGS", "not all arguments of the kernel are set"),
        -53 => ("CL_INVALID_WORK_DIMENSION", "a launch has one to three dimensions"),
        -54 => {
            ("CL_INVALID_WORK_GROUP_SIZE", "the local size must divide the global size and respect the kernel's limit")
        }
        -55 => ("CL_INVALID_WORK_ITEM_SIZE", "the local size is too large in one dimension"),
        -56 => ("CL_INVALID_GLOBAL_OFFSET", "the global offset is too large"),
        -57 => ("CL_INVALID_EVENT_WAIT_LIST", "the wait list holds an event of another context"),
        -58 => ("CL_INVALID_EVENT", "this is no event"),
        -59 => ("CL_INVALID_OPERATION", "the object's state or flags forbid this"),
        -60 => ("CL_INVALID_GL_OBJECT", "this is no OpenGL object"),
        -61 => {
            ("CL_INVALID_BUFFER_SIZE", "the size is zero or above the device's largest allocation; split the buffer")
        }
        -62 => ("CL_INVALID_MIP_LEVEL", "there is no such mip level"),
        -63 => ("CL_INVALID_GLOBAL_WORK_SIZE", "the global size is zero or too large"),
        -64 => ("CL_INVALID_PROPERTY", "the property is unknown"),
        -65 => ("CL_INVALID_IMAGE_DESCRIPTOR", "the image descriptor is not valid"),
        -66 => ("CL_INVALID_COMPILER_OPTIONS", "the compiler does not know one of the options"),
        -67 => ("CL_INVALID_LINKER_OPTIONS", "the linker does not know one of the options"),
        -68 => ("CL_INVALID_DEVICE_PARTITION_COUNT", "the device cannot be divided into so many"),
        -69 => ("CL_INVALID_PIPE_SIZE", "the pipe's size is not valid"),
        -70 => ("CL_INVALID_DEVICE_QUEUE", "this is no device queue"),
        -71 => ("CL_INVALID_SPEC_ID", "there is no such specialisation constant"),
        -72 => ("CL_MAX_SIZE_RESTRICTION_EXCEEDED", "the argument exceeds the size set in the kernel"),
        -1001 => (
            "CL_PLATFORM_NOT_FOUND_KHR",
            "the loader finds no driver; look into /etc/OpenCL/vendors or OCL_ICD_VENDORS",
        ),
        -9999 => ("NVIDIA_ILLEGAL_ACCESS", "a kernel read or wrote outside its buffers; the context is lost"),
        _ => ("an unknown code", "see the driver's documentation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(log: &str, lines: usize) -> BuildError {
        let source = (1..=lines).map(|n| format!("line{n}\n")).collect();
        BuildError { device: "dev".into(), options: " -DX=1 ".into(), log: log.into(), source, cached: false }
    }

    #[test]
    fn a_call_names_code_and_cure() {
        let e = ClError::call("clEnqueueNDRangeKernel", -54).about(|| "kernel k, local [3]".into());
        assert_eq!(
            e.to_string(),
            "clEnqueueNDRangeKernel failed with CL_INVALID_WORK_GROUP_SIZE (-54) [kernel k, local [3]]: the local size must divide the global size and respect the kernel's limit"
        );
        assert_eq!(e.kind(), ErrorKind::Runtime);
        assert_eq!(ClError::call("clCreateBuffer", -4).kind(), ErrorKind::Memory);
        assert_eq!(ClError::call("x", -12345).code(), Some(-12345));
    }

    #[test]
    fn build_errors_mark_the_lines_of_all_styles_of_log() {
        assert_eq!(error("/a/x.cl:3:7: error: no", 5).blamed_lines(), [3]);
        assert_eq!(error("error: /a/x.cl:2:26: unknown type", 5).blamed_lines(), [2]);
        assert_eq!(error("<kernel>(4): error: no\n1 error generated.", 5).blamed_lines(), [4]);
        assert_eq!(error("fine", 5).blamed_lines(), [] as [usize; 0]);
        let text = error("p:2:1: error: bad", 3).to_string();
        assert_eq!(
            text,
            "an OpenCL program does not compile for dev (options: -DX=1)\n--- compiler log ---\np:2:1: error: bad\n--- source ---\n     1 | line1\n>    2 | line2\n     3 | line3"
        );
    }

    #[test]
    fn long_sources_show_the_surroundings_only() {
        let e = error("p:200:1: error: bad", 400);
        let text = e.to_string();
        assert!(text.contains(">  200 | line200") && text.contains("   196 | line196"), "{text}");
        assert!(!text.contains("line195") && text.lines().count() < 20, "{text}");
        assert_eq!(e.numbered_source().lines().count(), 400);
    }

    #[test]
    fn a_silent_compiler_is_said_to_be_silent() {
        assert!(error("\0\n", 1).to_string().contains("(the compiler said nothing)"));
    }

    #[test]
    fn only_errors_in_lines_of_the_source_blame_it() {
        let blames = |log: &str| error(log, 3).blames_source();
        assert!(blames("<source>:2:18: error: unknown type name 'floaty'"));
        assert!(blames("error: /a/program.cl:3:1: expected expression"));
        assert!(blames("input.cl(1): error: no such function"));
        assert!(blames("ptxas application ptx input, line 3; error   : Unknown modifier"));
        assert!(!blames("Device pthread failed to build the program"));
        assert!(!blames("error: unable to open output file '/cache/x.bc': 'No space left on device'"));
        assert!(!blames("<source>:2:18: warning: unused variable"));
        assert!(!blames("header.h:400:1: error: outside of the source"));
        assert!(!blames(""));
    }
}
